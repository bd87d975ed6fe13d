"""`slipstream`, the one command."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from proxy.app import App
from proxy.errors import DataInUse
from proxy.ingesting import LOG_FORMAT
from proxy.server import Server
from proxy.settings import ProxySettings
from scripts import demo as demo_module
from scripts import keys, known_settings
from scripts.services import CannotStart, Services, require_free_port
from storage.errors import StorageError
from storage.folders import require_usable
from storage.settings import UNREADABLE, explain
from trainer import loop
from trainer.errors import TrainerError
from trainer.settings import TrainerSettings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

keys_app = typer.Typer(no_args_is_help=True, help="The keys of agents.")
app.add_typer(keys_app, name="keys")

S = TypeVar("S", ProxySettings, TrainerSettings)


@app.callback()
def check_names() -> None:
    """Slipstream: an OpenAI-compatible proxy that records your agent and trains its model while it works."""
    fault = _settings(known_settings.unknown)
    if fault is not None:
        _fail(fault)


@app.command()
def serve() -> None:
    """Run vLLM, proxy and trainer together, until SIGTERM or Ctrl-C."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _interrupt(stop))
    console = Console()
    services = _settings(lambda: Services(None, lambda text: console.print(text, highlight=False, soft_wrap=True)))
    try:
        services.start()
        console.print(f"Slipstream serves at {services.url}/v1 (model `{services.proxy_settings.alias[0]}`)")
        console.print(
            f"everything that is kept lies in {services.proxy_settings.data} (logs/, admin.key)", soft_wrap=True
        )
        stop.wait()
    except KeyboardInterrupt:
        pass
    except CannotStart as error:
        _fail(str(error))
    finally:
        if services.stop():
            console.print("stopped")


@app.command()
def proxy() -> None:
    """Run the proxy alone; `SLIPSTREAM_UPSTREAM` names the vLLM servers."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    settings = _settings(ProxySettings)
    try:
        require_free_port(settings.host, settings.port)
        require_usable(settings.data)
    except (CannotStart, StorageError) as error:
        _fail(str(error))
    server = Server(App(settings))
    server.run()
    if not server.started:
        sys.exit(3)


@app.command()
def trainer() -> None:
    """Run the trainer alone, beside a proxy on the same data folder."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    # It warns whenever a cycle takes longer than the interval, as every training run does.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings = _settings(TrainerSettings)
    try:
        require_usable(settings.data)
        loop.serve(settings)
    except (TrainerError, StorageError) as error:
        _fail(str(error))


@app.command()
def demo(
    scenario: Annotated[demo_module.Task, typer.Option(help="The demo agent's task.")] = demo_module.Task.WORDS,
    steps: Annotated[int, typer.Option(min=3, help="Rounds of work, with a training run between two.")] = 16,
    model: Annotated[str | None, typer.Option(help="A Hugging Face name or a folder.")] = None,
    control: Annotated[
        demo_module.Control, typer.Option(help="`shuffle` deals the rewards out at random: nothing may be learned.")
    ] = demo_module.Control.NONE,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the servers up at the end.")] = False,
    data: Annotated[Path | None, typer.Option(help="A new folder for what is recorded and trained.")] = None,
) -> None:
    """Watch the loop turn: a small agent gets better while it works."""
    options = demo_module.Options(scenario, steps, model, control, keep, data)
    try:
        code = _settings(lambda: demo_module.run(options))
    except CannotStart as error:
        _fail(str(error))
    sys.exit(code)


@keys_app.command()
def add(name: Annotated[str, typer.Argument(help="The owner of everything that is done with the key.")]) -> None:
    """Make a client key, and show it this once. While a proxy runs, `POST /admin/keys` does it."""
    settings = _settings(ProxySettings)
    try:
        require_usable(settings.data)
        print(keys.add(settings.data, name))
    except DataInUse as error:
        _fail(f"{error}; that one makes keys itself: POST /admin/keys")
    except StorageError as error:
        _fail(str(error))


def main() -> None:
    app()


T = TypeVar("T")


def _settings(make: Callable[[], T]) -> T:
    try:
        return make()
    except UNREADABLE as error:
        _fail(explain(error))


def _interrupt(stop: threading.Event) -> None:
    """While the service is still starting, a signal ends the wait at once."""
    if stop.is_set():
        return
    stop.set()
    raise KeyboardInterrupt


def _fail(text: str) -> typing.NoReturn:
    print(f"slipstream: {text}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
