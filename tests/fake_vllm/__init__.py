"""A fake vLLM: a server of its own that speaks vLLM's protocol, as far as an agent or Slipstream can see it.

    python -m tests.fake_vllm --port 8401          # or, in a test:  with FakeVllm() as fake: ... fake.url ...

Chat, completions, responses and Anthropic's messages, with tools, reasoning and streams; what needs no generation;
adapters; control paths. Its tokens are the bytes of the text, its answers and logprobs a function of the request and of
the weights that answer, so whatever it said can be computed again. It captures as Slipstream's plugin does, keeps the
requests that it got, and misbehaves on demand: see `tests.fake_vllm.faults`.
"""

from tests.fake_vllm.server import FakeVllm
from tests.fake_vllm.state import Received

__all__ = ["FakeVllm", "Received"]
