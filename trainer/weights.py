"""Where the base model's weights lie: vLLM tells, so that server and trainer can never differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from trainer.errors import NoWeights
from trainer.fingerprints import base_fingerprint
from trainer.quantisation import in_four_bits
from trainer.settings import TrainerSettings

_CONFIG = "config.json"
_TIMEOUT = httpx.Timeout(10.0)


def root(settings: TrainerSettings) -> str:
    """The `root` of the base model in vLLM's ``/v1/models``: a folder, or a hub's name.

    Raises `NoWeights` when no vLLM server tells.
    """
    key = settings.upstream_api_key
    headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
    problem = "no vLLM server is configured: set SLIPSTREAM_UPSTREAM"
    for url in settings.upstream:
        try:
            response = httpx.get(f"{url}/v1/models", headers=headers, timeout=_TIMEOUT).raise_for_status()
            models = response.json()["data"]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            problem = f"vLLM at {url} does not tell where its weights lie ({error})"
            continue
        for model in models:
            if model.get("parent") is None and settings.model in (None, model["id"]):
                return str(model.get("root") or model["id"])
        problem = f"vLLM at {url} does not serve {settings.model}: set SLIPSTREAM_MODEL to a model that it serves"
    raise NoWeights(problem)


def vocabulary(base_model: str) -> int | None:
    """How many tokens the base model knows: their ids are below. None where its files are not here yet."""
    found = _config(base_model)
    if found is None:
        return None
    config = json.loads(found.read_text())
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return size if isinstance(size, int) else None


def require_trainable(base_model: str) -> None:
    """Raises `Untrainable`. Where the files are not here yet the update worker sees to it."""
    found = _config(base_model)
    if found is not None:
        in_four_bits(json.loads(found.read_text()), gpu=shutil.which("nvidia-smi") is not None)


def fingerprint(base_model: str) -> str | None:
    """As `base_fingerprint` of the base model's folder. None where its files are not here yet."""
    found = _config(base_model)
    try:
        return base_fingerprint(found.parent) if found else None
    except FileNotFoundError:
        return None


def _config(base_model: str) -> Path | None:
    path = Path(base_model) / _CONFIG
    try:
        found = path if path.is_file() else try_to_load_from_cache(base_model, _CONFIG)
    except HFValidationError:  # no hub's name
        return None
    return Path(found) if isinstance(found, str | Path) else None


def tokenizer(base_model: str) -> Any:
    """The base model's tokenizer, from files that are here. Raises `NoWeights` where they are not, or are none."""
    from transformers import AutoTokenizer  # takes seconds, and most trainers never need it

    try:
        return AutoTokenizer.from_pretrained(base_model, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # for a file that is none the library raises `Exception` itself
        raise NoWeights(f"the tokenizer of {base_model} cannot be read: {error}") from error
