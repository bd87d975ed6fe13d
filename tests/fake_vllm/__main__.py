"""`python -m tests.fake_vllm`: the fake on a port, with `SLIPSTREAM_PLUGIN_SECRET` as the plugin has it."""

from __future__ import annotations

import argparse
import os

import uvicorn

from tests.fake_vllm.app import FakeApp
from tests.fake_vllm.server import Protocol, config
from tests.fake_vllm.state import State


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fake_vllm", description="A vLLM that thinks in hashes.")
    parser.add_argument("--port", type=int, default=8401)
    parser.add_argument("--model", default="base-model", help="the base model's name")
    parser.add_argument("--no-runtime-adapters", action="store_true", help="as without --enable-lora")
    parser.add_argument("--unique-ids", action="store_true", help="no two responses have the same ids")
    parser.add_argument("--store", action="store_true", help="as with VLLM_ENABLE_RESPONSES_API_STORE=1")
    options = parser.parse_args()
    secret = os.environ.get("SLIPSTREAM_PLUGIN_SECRET")
    state = State(options.model, options.model, unique_ids=options.unique_ids, stores=options.store)
    state.keeps_requests = False
    app = FakeApp(state, secret, runtime_adapters=not options.no_runtime_adapters)
    uvicorn.Server(config(app, Protocol, options.port)).run()


if __name__ == "__main__":
    main()
