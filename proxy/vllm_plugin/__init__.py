"""The part of Slipstream that runs inside vLLM.

vLLM's front end, its engine core and its worker each load `register` through the entry point group
`vllm.general_plugins`, so this file imports nothing heavy. Token capture is a second door of the same
package (`proxy.vllm_plugin.capture`, given to vLLM as `--middleware`) and opens in the front end alone.

The package imports nothing of the project: it may be put alone on the path of another interpreter.
"""

import logging
import os

from .settings import SECRET_VARIABLE, refuse_rust_frontend

_MENDED_VERSIONS = ("0.32.",)
"""The vLLM versions whose CPU LoRA path was found to be wrong and slow. Others are left alone."""

_log = logging.getLogger("vllm.slipstream")
"""A child of vLLM's own logger: its lines appear in vLLM's log."""


def register() -> None:
    """Mends vLLM's CPU LoRA path where it is known to be broken; called once or more in each process.

    Raises:
        PluginError: capture is wanted, but vLLM runs its Rust front end, which never loads a middleware.
            The middleware cannot say so itself, hence the check here.

    """
    if os.environ.get(SECRET_VARIABLE):
        refuse_rust_frontend()

    from vllm.platforms import current_platform
    from vllm.version import __version__

    if not current_platform.is_cpu():
        return
    if not __version__.startswith(_MENDED_VERSIONS):
        _log.info("slipstream: vLLM %s is not known to need the CPU LoRA repair, left as it is", __version__)
        return

    from . import lora_cpu

    lora_cpu.install()
