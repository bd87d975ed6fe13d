"""How vLLM is started: what it must be told, and the plugin where it has an environment of its own."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from scripts.vllm_server import VllmServer
from storage.settings import Settings
from storage.update_settings import UpdateSettings


def server(tmp_path: Path, *, rank: int = 16, staleness: int = 4, python: str = sys.executable) -> VllmServer:
    return VllmServer(
        model="/models/small",
        name="small",
        port=8401,
        settings=Settings(data=tmp_path / "data", max_staleness=staleness),
        update=UpdateSettings(rank=rank),
        python=python,
        extra=("--max-num-seqs", "8"),
    )


def flags(command: list[str]) -> dict[str, str]:
    return {name: value for name, value in pairwise(command) if name.startswith("--")}


def test_vllm_is_told_what_slipstream_needs(tmp_path: Path) -> None:
    command = server(tmp_path).command()
    assert command[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert "--enable-lora" in command
    found = flags(command)
    expected = {
        "--model": "/models/small",
        "--served-model-name": "small",
        "--host": "127.0.0.1",
        "--port": "8401",
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",
        "--api-server-count": "1",
        "--middleware": "proxy.vllm_plugin.capture.CaptureMiddleware",
        "--max-loras": "6",
        "--max-cpu-loras": "12",
        "--max-lora-rank": "16",
        "--max-num-seqs": "8",
    }
    assert {name: found[name] for name in expected} == expected
    assert server(tmp_path).url == "http://127.0.0.1:8401"


@pytest.mark.parametrize(
    ("rank", "served"), [(1, 1), (2, 8), (8, 8), (9, 16), (16, 16), (17, 32), (100, 128), (512, 512)]
)
def test_the_rank_is_one_that_vllm_serves(tmp_path: Path, rank: int, served: int) -> None:
    assert flags(server(tmp_path, rank=rank).command())["--max-lora-rank"] == str(served)


def test_there_is_room_for_the_versions_that_may_still_answer(tmp_path: Path) -> None:
    assert flags(server(tmp_path, staleness=1).command())["--max-loras"] == "3"


def test_the_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "something else")
    monkeypatch.delenv("SLIPSTREAM_PLUGIN_SECRET", raising=False)
    found = server(tmp_path).environment()
    assert found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "VLLM_PLUGINS" not in found, "set, it would hide the plugin"
    secret = found["SLIPSTREAM_PLUGIN_SECRET"]
    assert len(secret) >= 32
    assert secret == (tmp_path / "data" / "plugin.secret").read_text().strip()
    assert server(tmp_path).environment()["SLIPSTREAM_PLUGIN_SECRET"] == secret
    assert found.get("PYTHONPATH") == os.environ.get("PYTHONPATH")


_LOAD = """
import importlib, json, sys
from importlib.metadata import entry_points
before = set(sys.modules)
(entry,) = entry_points(group="vllm.general_plugins")
register = entry.load()
middleware = importlib.import_module("proxy.vllm_plugin.capture").CaptureMiddleware
loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
ours = sorted(name for name in sys.modules if name.startswith("proxy"))
print(json.dumps([entry.name, entry.value, register.__name__, middleware.__name__, sorted(loaded), ours]))
"""


def test_another_interpreter_gets_the_plugin_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    for _ in range(2):  # the folder is made anew at each start
        path = server(tmp_path, python="/other/python").environment()["PYTHONPATH"]
    assert path == f"{tmp_path / 'data' / 'plugin'}:/somewhere"
    # Without site-packages: nothing else of this environment can be found.
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LOAD],
        env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name, value, register, middleware, loaded, ours = json.loads(done.stdout)
    assert (name, value) == ("slipstream", "proxy.vllm_plugin:register")
    assert (register, middleware) == ("register", "CaptureMiddleware")
    assert loaded == ["proxy"]
    assert all(module == "proxy" or module.startswith("proxy.vllm_plugin") for module in ours)
    kept = {
        str(file.relative_to(tmp_path / "data" / "plugin")) for file in (tmp_path / "data" / "plugin").rglob("*.py")
    }
    assert "proxy/__init__.py" in kept
    assert all(file.startswith("proxy/vllm_plugin/") for file in kept - {"proxy/__init__.py"})
