"""The shapes of a real vLLM's answers. Each stands in the file once, however many answers have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("shapes.json")

Shape = dict[str, Any]


def write(found: dict[str, Shape]) -> None:
    FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def read() -> dict[str, Shape]:
    known: dict[str, Shape] = json.loads(FILE.read_text())
    return known
