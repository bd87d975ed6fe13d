"""What the tests of the proxy take vLLM to be, checked on the fake one and on a real one alike.

`shapes.json` holds the shape of a real vLLM's answer to every request of `requests`, as `python -m tests.vllm_contract`
wrote it down; the tests are in `contract`. `tests/fake_vllm/test_contract.py` runs them on the fake, with the unit
tests, and `tests/e2e/test_contract.py` on the real vLLM that all end-to-end tests share. Where the fake differs, it is
wrong.
"""

import pytest

pytest.register_assert_rewrite("tests.vllm_contract.contract")
