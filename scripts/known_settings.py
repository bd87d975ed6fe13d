"""Which settings there are: a misspelt one is refused, rather than left at its default without a word."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from proxy.secrets import PLUGIN_SECRET_VARIABLE
from proxy.settings import ProxySettings
from storage.settings import FILE
from trainer.settings import TrainerSettings

PREFIX = "SLIPSTREAM_"
VARIABLES_ALONE = ("SLIPSTREAM_VLLM_PYTHON", "SLIPSTREAM_VLLM_ARGS", PLUGIN_SECRET_VARIABLE)

_NAMES = sorted({*ProxySettings.model_fields, *TrainerSettings.model_fields})


def unknown(toml: Path = Path(FILE), environment: Mapping[str, str] = os.environ) -> str | None:
    """What is wrong with the names of the settings that are given, in words; None when all are known.

    Names inside tables are checked where the tables are read. Raises `tomllib.TOMLDecodeError`.
    """
    in_file = tomllib.loads(toml.read_text()) if toml.is_file() else {}
    faults = [_fault(f"{FILE}: {name!r}", name, _NAMES) for name in in_file if name not in _NAMES]
    tops = [PREFIX + name.upper() for name in _NAMES]
    for variable in sorted(environment):
        if variable.startswith(PREFIX) and variable not in VARIABLES_ALONE:
            top = variable.partition("__")[0]
            if top.upper() not in tops:
                faults.append(_fault(variable, variable, [*tops, *VARIABLES_ALONE]))
    return "\n".join(faults) or None


def _fault(where: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, cutoff=0.5)
    return f"{where} is no setting" + (f"; is {near[0]} meant?" if near else " (docs/configuration.md lists them)")
