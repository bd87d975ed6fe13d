"""Secrets of the installation: made at the first start, kept in the data folder with mode 0600."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

ADMIN_KEY = "admin.key"
PLUGIN_SECRET = "plugin.secret"  # noqa: S105 - a file's name
PLUGIN_SECRET_VARIABLE = "SLIPSTREAM_PLUGIN_SECRET"  # noqa: S105 - a variable's name


def keep(folder: Path, name: str, prefix: str = "") -> tuple[str, bool]:
    """The secret in file ``name``, made where there is none; and whether it was made now."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip(), False
    secret = prefix + secrets.token_urlsafe(32)
    with os.fdopen(file, "w") as out:
        out.write(secret + "\n")
    return secret, True


def admin_key(folder: Path, say: Callable[[str], None]) -> str:
    """The admin key of the installation; where it is made now, it is said this once."""
    key, made = keep(folder, ADMIN_KEY, "slip-")
    if made:
        say(f"The admin key, shown this once and kept in {folder / ADMIN_KEY}: {key}")
    return key


def plugin_secret(folder: Path) -> str:
    """What proxy and plugin know each other by: `SLIPSTREAM_PLUGIN_SECRET`, or the installation's own."""
    return os.environ.get(PLUGIN_SECRET_VARIABLE) or keep(folder, PLUGIN_SECRET)[0]
