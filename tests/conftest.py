from hypothesis import HealthCheck, settings

# A loaded machine is slow, which is no fault of the code.
settings.register_profile("slipstream", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("slipstream")
