"""What the fake holds: its models, and the requests that it got."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fake_vllm.engine import BASE_WEIGHTS, Model
from tests.fake_vllm.replies import CREATED
from tests.fake_vllm.validation import MAX_MODEL_LEN

_PERMISSION: dict[str, Any] = {
    "id": "",
    "object": "model_permission",
    "created": CREATED,
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}


@dataclass(slots=True)
class Received:
    """A request as it arrived."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when the client left before the end of the response."""

    def header(self, name: str) -> str | None:
        """The first header of that name."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)


@dataclass(slots=True)
class Adapter:
    model: Model
    folder: str


@dataclass(slots=True)
class Stored:
    """A response that is kept, and the conversation up to its end."""

    document: dict[str, Any]
    messages: list[dict[str, Any]]


@dataclass(slots=True)
class State:
    """The models of one life of the server; a restart forgets the adapters."""

    base: str | None
    """The base model's name; None: serves no model at all."""
    root: str
    adapters: dict[str, Adapter] = field(default_factory=dict)
    served_as_base: bool = False
    """Adapters are listed, and answered by the base model, as vLLM does where no module name fits."""
    requests: list[Received] = field(default_factory=list)
    keeps_requests: bool = True
    sleeping: bool = False
    paused: bool = False
    """While it sleeps or pauses, what is to be generated waits."""
    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Parts that may be written of answers with the fault `step`."""
    running: int = 0
    """The answers that are being generated or written."""
    text_only: bool = False
    """As a model of text is served: without embeddings, pictures and sound."""
    stores: bool = False
    """As with `VLLM_ENABLE_RESPONSES_API_STORE=1`: responses can be read again, and continued by their id."""
    stored: dict[str, Stored] = field(default_factory=dict)
    unique_ids: bool = False
    """As in a real vLLM no two responses have the same ids; else those to equal requests are equal bytes."""

    def model(self, name: str) -> Model | None:
        """The model that answers to ``name``."""
        adapter = self.adapters.get(name)
        if adapter is not None:
            return Model(name, BASE_WEIGHTS) if self.served_as_base else adapter.model
        return Model(name, BASE_WEIGHTS) if name == self.base and name else None

    def load(self, name: str, folder: str) -> None:
        """Load an adapter. Raises FileNotFoundError where the folder holds none."""
        self.adapters[name] = Adapter(Model.of_folder(name, Path(folder)), folder)

    def cards(self) -> list[dict[str, Any]]:
        """The models as `/v1/models` lists them."""
        if self.base is None:
            return []
        base = {**_card(self.base, self.root, None), "max_model_len": MAX_MODEL_LEN}
        return [base, *(_card(name, adapter.folder, self.base) for name, adapter in self.adapters.items())]


def _card(name: str, root: str, parent: str | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": CREATED,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": None,
        "permission": [{**_PERMISSION, "id": f"modelperm-{name}"}],
    }
