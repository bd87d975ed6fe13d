"""What identifies a base model without reading all of it. Free of torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

_EDGE = 1 << 20


def base_fingerprint(folder: Path) -> str:
    """Return a sha256 (hex) of a model folder: cheap, and different for any two models met in practice.

    It covers the bytes of ``config.json`` and, for each weights file in order of name, the name, the size,
    and the first and last MiB. A safetensors file begins with the names, shapes and offsets of its
    tensors, so a different architecture always shows. A change confined to the middle of a large file does not:
    a full training run moves every tensor, so this takes forgery, not accident. Takes milliseconds.

    Raises ``FileNotFoundError`` when the folder holds no ``config.json`` or no weights.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    if not weights:
        raise FileNotFoundError(f"no weights (*.safetensors, *.bin) in {folder}")
    for path in weights:
        size = path.stat().st_size
        digest.update(f"\0{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_EDGE))
            file.seek(max(size - _EDGE, 0))
            digest.update(file.read(_EDGE))
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """Return the sha256 (hex) of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
