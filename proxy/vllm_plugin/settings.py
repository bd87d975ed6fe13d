"""What the plugin reads from the environment of vLLM, and the one error it refuses to start with."""

import os

SECRET_VARIABLE = "SLIPSTREAM_PLUGIN_SECRET"  # noqa: S105 - the variable's name
RUST_VARIABLE = "VLLM_USE_RUST_FRONTEND"


class PluginError(RuntimeError):
    """The plugin cannot do its work in this vLLM; the text says what to change."""


def refuse_rust_frontend() -> None:
    """Raises PluginError where vLLM's front end is not Python: requests would pass the plugin unseen."""
    if os.environ.get(RUST_VARIABLE, "0").strip() not in ("", "0"):
        raise PluginError(
            f"{RUST_VARIABLE} is set: vLLM's Rust front end loads no middleware, so Slipstream's plugin could "
            f"not see any request. Unset it, or start vLLM without {SECRET_VARIABLE} and without the plugin."
        )


def read_secret() -> bytes:
    """The secret that the proxy shares with the plugin.

    Raises:
        PluginError: it is missing, or holds a space or a character outside printable ASCII. The header
            that carries it has its fields apart by spaces.

    """
    secret = os.environ.get(SECRET_VARIABLE, "")
    if not secret:
        raise PluginError(
            f"{SECRET_VARIABLE} is not set: set it to the secret that Slipstream's proxy sends, in the "
            "environment of vLLM, or take the middleware off vLLM's command line."
        )
    if not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise PluginError(f"{SECRET_VARIABLE} must be printable ASCII without spaces (32 hex digits are good).")
    return secret.encode()
