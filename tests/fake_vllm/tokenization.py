"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Any

from tests.fake_vllm import tokens
from tests.fake_vllm.replies import Reply, document
from tests.fake_vllm.validation import MAX_MODEL_LEN, malformed


def tokenize(request: dict[str, Any]) -> Reply:
    if request.get("messages") is not None:
        ids = tokens.prompt(request["messages"])
    elif request.get("prompt") is not None:
        ids = tokens.encode(request["prompt"])
    else:
        raise malformed(["Field required", "Field required"], "body.prompt")
    strings = [tokens.string(token) for token in ids] if request.get("return_token_strs") else None
    return document({"count": len(ids), "max_model_len": MAX_MODEL_LEN, "tokens": ids, "token_strs": strings})


def detokenize(request: dict[str, Any]) -> Reply:
    return document({"prompt": tokens.decode(request["tokens"])})
