"""What the proxy costs: `./scripts/bench/proxy`. See `__main__`."""
