"""What is refused before anything starts, in words that say what to do."""

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxy import lock
from scripts import cli, services, small_model
from scripts.services import CannotStart, find_model, require_free_port
from tests.proxy.running import free_port

LOG = Path("model.log")


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """`serve` takes the signals of its process, which here is the tests'."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_folder_with_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(CannotStart, match=r"model holds no config\.json: it is not a Hugging Face model folder"):
        find_model(str(folder), print, LOG)
    (folder / "config.json").write_text("{}")
    assert find_model(str(folder), print, LOG) == str(folder)
    monkeypatch.chdir(tmp_path)
    assert find_model("model", print, LOG) == str(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_model("~/model", print, LOG) == str(folder)


def test_a_hubs_name_is_left_to_vllm() -> None:
    assert find_model("Qwen/Qwen3-0.6B", print, LOG) == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "../up", "missing", "a/b/c", "", "org/"])
def test_what_is_neither_is_refused(name: str) -> None:
    with pytest.raises(CannotStart, match=r"there is no model .*: give a folder that exists, or a hub's name"):
        find_model(name, print, LOG)


def test_without_a_name_it_is_the_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MODELS", tmp_path)
    folder = tmp_path / small_model.NAME
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    told: list[str] = []
    assert find_model(None, told.append, LOG) == str(folder)
    assert told == [], "it is there already"


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - the neighbour's fault, on purpose
def test_a_port_that_is_taken_is_said(listens_on: str) -> None:
    with socket.create_server((listens_on, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotStart, match=f"port {port} on 127.0.0.1 cannot be used .*SLIPSTREAM_PORT"):
            require_free_port("127.0.0.1", port)
    require_free_port("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "::g", "a..b"])
def test_a_host_that_is_not_of_this_machine(host: str) -> None:
    with pytest.raises(CannotStart, match=re.escape(f"port 8400 on {host} cannot be used") + ".*SLIPSTREAM_HOST"):
        require_free_port(host, 8400)


def test_a_port_beyond_all_ports() -> None:
    """vLLM gets the port after the proxy's."""
    with pytest.raises(CannotStart, match=r"port 65536 on 127\.0\.0\.1 cannot be used"):
        require_free_port("127.0.0.1", 65536)


@pytest.mark.parametrize("command", [["serve"], ["proxy"], ["trainer"], ["keys", "add", "ann"]])
@pytest.mark.parametrize("below", ["", "folder"])
def test_a_data_folder_that_cannot_be_made_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], below: str
) -> None:
    """Without a traceback, and without a word of stopping what never ran."""
    (tmp_path / "file").write_text("in its place")
    folder = tmp_path / "file" / below
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLIPSTREAM_DATA", str(folder))
    monkeypatch.setenv("SLIPSTREAM_PORT", str(free_port()))
    monkeypatch.setenv("SLIPSTREAM_UPSTREAM", "http://127.0.0.1:1")
    told = CliRunner().invoke(cli.app, command)
    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr.startswith(f"slipstream: the data folder {folder} cannot be used (a file is in its place): ")
    assert "SLIPSTREAM_DATA" in told.stderr


def test_a_second_service_on_a_folder_is_refused_before_a_vllm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLIPSTREAM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SLIPSTREAM_PORT", str(free_port()))
    monkeypatch.setenv("SLIPSTREAM_UPSTREAM", "http://127.0.0.1:1")
    with lock.take(tmp_path / "data"):
        told = CliRunner().invoke(cli.app, ["serve"])
    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr.startswith(f"slipstream: another proxy works on the data folder {tmp_path / 'data'}: stop")
    assert not (tmp_path / "data" / "logs").exists()
