"""How Slipstream starts vLLM: command line and environment, and the plugin where vLLM has an environment of its own."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from proxy.secrets import PLUGIN_SECRET_VARIABLE, plugin_secret
from storage.settings import Settings
from storage.update_settings import UpdateSettings

MIDDLEWARE = "proxy.vllm_plugin.capture.CaptureMiddleware"
_PLUGIN = Path(__file__).parent.parent / "proxy" / "vllm_plugin"
_SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A vLLM server to be started."""

    model: str
    """A Hugging Face name, or a local folder."""
    name: str
    """The base model's name on the wire."""
    port: int
    settings: Settings
    update: UpdateSettings
    python: str = sys.executable
    """The interpreter that runs vLLM (`SLIPSTREAM_VLLM_PYTHON`)."""
    extra: tuple[str, ...] = ()
    """Further arguments for vLLM, as they are (`SLIPSTREAM_VLLM_ARGS`)."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        # The staleness limit, the version that is just coming and the one that is standing by.
        loras = self.settings.max_staleness + 2
        rank = next(r for r in _SERVED_RANKS if r >= self.update.rank)
        arguments = {
            "--model": self.model,
            "--served-model-name": self.name,
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--max-loras": str(loras),
            "--max-cpu-loras": str(2 * loras),
            "--max-lora-rank": str(rank),
            "--logprobs-mode": "processed_logprobs",
            "--generation-config": "vllm",
            "--api-server-count": "1",
            "--middleware": MIDDLEWARE,
            # The proxy looks there once a second.
            "--disable-access-log-for-endpoints": "/v1/models",
        }
        pairs = [part for pair in arguments.items() for part in pair]
        # On a GPU the update worker needs its share of the same memory; on a CPU compiling costs more than it gives.
        hardware = ["--gpu-memory-utilization", "0.5"] if _has_gpu() else ["--enforce-eager"]
        module = "vllm.entrypoints.openai.api_server"
        return [self.python, "-m", module, "--enable-lora", *pairs, *hardware, *self.extra]

    def environment(self) -> dict[str, str]:
        env = dict(os.environ)
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        env[PLUGIN_SECRET_VARIABLE] = plugin_secret(self.settings.data)
        env["VLLM_NO_USAGE_STATS"] = "1"
        env.setdefault("VLLM_LOGGING_LEVEL", "INFO")
        # Set, it would hide the plugin.
        env.pop("VLLM_PLUGINS", None)
        if not _has_gpu():
            env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        if self.python != sys.executable:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self._plugin_folder()), env.get("PYTHONPATH")]))
        return env

    def _plugin_folder(self) -> Path:
        """A folder with the plugin alone, as an installed distribution: vLLM's environment needs nothing else of us."""
        folder = self.settings.data / "plugin"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(_PLUGIN, folder / "proxy" / "vllm_plugin", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "proxy" / "__init__.py").write_text("")
        number = version("slipstream")
        info = folder / f"slipstream_vllm_plugin-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: slipstream-vllm-plugin\nVersion: {number}\n")
        (info / "entry_points.txt").write_text("[vllm.general_plugins]\nslipstream = proxy.vllm_plugin:register\n")
        return folder


def _has_gpu() -> bool:
    """By the same sign as in scripts/setup, which chose what is installed."""
    return shutil.which("nvidia-smi") is not None
