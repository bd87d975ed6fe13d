"""What needs no generation: embeddings, pooling, classify, score and rerank. See vllm/entrypoints/pooling.

A real vLLM serves these for pooling models and the dialects for generating ones; the fake serves all of them.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable
from typing import Any

from tests.fake_vllm import tokens
from tests.fake_vllm.replies import NO_DETAILS, Asked, Reply, document
from tests.fake_vllm.validation import malformed

_DIMENSIONS = 8
_LABELS = ("no", "yes")


def embeddings(asked: Asked) -> Reply:
    texts = _inputs(asked.request)
    count = asked.request.get("dimensions") or _DIMENSIONS
    vectors = [_vector(asked, text, count) for text in texts]
    shown: list[Any] = list(vectors)
    if asked.request.get("encoding_format") == "base64":
        shown = [base64.b64encode(struct.pack(f"<{count}f", *vector)).decode() for vector in vectors]
    data = [{"index": index, "object": "embedding", "embedding": vector} for index, vector in enumerate(shown)]
    return _list(asked, "embd-", data, texts)


def pooling(asked: Asked) -> Reply:
    texts = _inputs(asked.request)
    rows = [[_vector(asked, f"{text} {at}", _DIMENSIONS) for at in range(2)] for text in texts]
    data = [{"index": index, "object": "pooling", "data": row} for index, row in enumerate(rows)]
    return _list(asked, "pool-", data, texts)


def classify(asked: Asked) -> Reply:
    texts = _inputs(asked.request)
    data = []
    for index, text in enumerate(texts):
        share = _score(asked, text)
        label = _LABELS[share > 0.5]
        data.append({"index": index, "label": label, "probs": [1 - share, share], "num_classes": len(_LABELS)})
    return _list(asked, "classify-", data, texts)


def score(asked: Asked) -> Reply:
    ones, others = _pairs(asked.request)
    pairs = [(ones[0], other) for other in others] if len(ones) == 1 else list(zip(ones, others, strict=True))
    texts = [f"{one} {other}" for one, other in pairs]
    data = [{"index": index, "object": "score", "score": _score(asked, text)} for index, text in enumerate(texts)]
    return _list(asked, "score-", data, texts)


def rerank(asked: Asked) -> Reply:
    request = asked.request
    if "query" not in request or "documents" not in request:
        raise malformed(["Field required"], "body.query")
    documents = _many(request["documents"])
    texts = [f"{request['query']} {text}" for text in documents]
    found: list[dict[str, Any]] = [
        {"index": index, "document": {"text": str(text), "multi_modal": None}, "relevance_score": _score(asked, both)}
        for index, (text, both) in enumerate(zip(documents, texts, strict=True))
    ]
    found.sort(key=lambda one: (-one["relevance_score"], one["index"]))
    count = sum(len(tokens.encode(text)) for text in texts)
    told = {"prompt_tokens": count, "total_tokens": count}
    results = found[: request.get("top_n") or len(found)]
    return document({"id": asked.id("rerank-"), "model": asked.name, "usage": told, "results": results})


ANSWERS: dict[str, Callable[[Asked], Reply]] = {
    "/v1/embeddings": embeddings,
    "/pooling": pooling,
    "/classify": classify,
    "/score": score,
    "/v1/score": score,
    "/rerank": rerank,
    "/v1/rerank": rerank,
    "/v2/rerank": rerank,
}


def _list(asked: Asked, prefix: str, data: list[dict[str, Any]], texts: list[str]) -> Reply:
    count = sum(len(tokens.encode(text)) for text in texts)
    told = {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0, **NO_DETAILS}
    head = {"id": asked.id(prefix), "object": "list", "created": asked.created, "model": asked.name}
    return document({**head, "data": data, "usage": told})


def _inputs(request: dict[str, Any]) -> list[str]:
    """The texts of a request: those of `input`, in any of its forms, or a conversation as one."""
    if request.get("messages"):
        return ["".join(tokens.text(message) for message in request["messages"])]
    given = request.get("input")
    if given is None or given == []:
        raise malformed(["Field required"], "body.input")
    if isinstance(given, list) and not isinstance(given[0], int):
        return [one if isinstance(one, str) else tokens.decode(one) for one in given]
    return [given if isinstance(given, str) else tokens.decode(given)]


_PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


def _pairs(request: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    for one, other in _PAIRS:
        if one in request and other in request:
            return _many(request[one]), _many(request[other])
    raise malformed(["Field required"], "body.queries")


def _many(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _score(asked: Asked, text: str) -> float:
    return int.from_bytes(_digest(asked, text)[:2], "little") / 65536


def _vector(asked: Asked, text: str, count: int) -> list[float]:
    """Multiples of 1/128 between −1 and 1, which every format of floats holds exactly."""
    digest = _digest(asked, text)
    return [(digest[at % len(digest)] - 128) / 128 for at in range(count)]


def _digest(asked: Asked, text: str) -> bytes:
    return hashlib.sha256(asked.model.weights + text.encode("utf-8", "replace")).digest()
