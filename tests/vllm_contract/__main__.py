"""`python -m tests.vllm_contract URL SECRET MODEL` writes down the shapes of a real vLLM's answers.

The vLLM runs with the plugin under that secret, as `tests/e2e/service.py` has it started.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.vllm_contract.asking import Vllm
from tests.vllm_contract.known import FILE, write
from tests.vllm_contract.requests import ALL, GENERATING


def main() -> None:
    url, secret, model = sys.argv[1:]
    vllm = Vllm.at(url, secret, model, Path())
    found = {}
    for name, request in ALL.items():
        found[name] = vllm.ask(request).shape()
        if name in GENERATING:
            found[name]["capture"] = vllm.ask(request, vllm.marked(model)).captured()
    write(found)
    print(f"{len(found)} answers: {FILE}")  # noqa: T201 - a program


if __name__ == "__main__":
    main()
