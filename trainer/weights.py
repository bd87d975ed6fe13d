"""Where the base model's weights lie: vLLM tells, so that server and trainer can never differ."""

from __future__ import annotations

import httpx

from trainer.errors import NoWeights
from trainer.settings import TrainerSettings

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
