"""Secrets of the installation: made at the first start, kept in the data folder with mode 0600."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from proxy.errors import BadFolder
from proxy.settings import ProxySettings
from storage.folders import make_private

ADMIN_KEY = "admin.key"
PLUGIN_SECRET = "plugin.secret"  # noqa: S105 - a file's name
PLUGIN_SECRET_VARIABLE = "SLIPSTREAM_PLUGIN_SECRET"  # noqa: S105 - a variable's name


def keep(folder: Path, name: str, prefix: str = "") -> tuple[str, bool]:
    """The secret in file ``name``, made where there is none; and whether it was made now. Raises `BadFolder`."""
    make_private(folder)
    path = folder / name
    kept = _read(path)
    if kept:
        return kept, False
    secret = prefix + secrets.token_urlsafe(32)
    # Whole under its name or not there at all, whenever the process dies.
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f".{name}.", suffix=".new") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
        try:
            path.hardlink_to(file.name)
        except FileExistsError:
            kept = _read(path)
            if kept:
                return kept, False
            path.unlink()  # emptied, by a crash or by hand
            path.hardlink_to(file.name)
    return secret, True


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip() if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadFolder(
            f"the secret in {path} cannot be read ({error}): put a copy in its place, or move it away, and a new one "
            "is made"
        ) from error


def admin_key(settings: ProxySettings, say: Callable[[str], None], *, shown: bool) -> str:
    """The admin key: the setting, else the installation's own; where that is made now, it is said this once.

    ``shown``: a person reads what is said; else only the file is named.
    """
    if settings.admin_key is not None:
        return settings.admin_key.get_secret_value()
    key, made = keep(settings.data, ADMIN_KEY, "slip-")
    if made:
        path = settings.data / ADMIN_KEY
        # What is no terminal is a log, which no key belongs into.
        say(f"The admin key, shown this once and kept in {path}: {key}" if shown else f"The admin key lies in {path}")
    return key


def plugin_secret(folder: Path) -> str:
    """What proxy and plugin know each other by: `SLIPSTREAM_PLUGIN_SECRET`, or the installation's own."""
    return os.environ.get(PLUGIN_SECRET_VARIABLE) or keep(folder, PLUGIN_SECRET)[0]
