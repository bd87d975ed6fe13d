"""Requests of the Responses API and of Anthropic's Messages, as the chat requests that vLLM makes of them."""

from __future__ import annotations

import json
from typing import Any

Chat = dict[str, Any]
Message = dict[str, Any]

_SAME = ("model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias")
_SAME_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "chat_template_kwargs")
_TEXTS = ("text", "input_text", "output_text", "refusal")


def of_responses(request: dict[str, Any], earlier: list[Message]) -> Chat:
    """``earlier`` are the messages of the response that the request continues."""
    messages: list[Message] = list(earlier)
    if request.get("instructions"):
        messages = [{"role": "system", "content": request["instructions"]}, *_without_system(messages)]
    asked = request["input"]
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    for item in items:
        _add_item(messages, item)
    tools = [_tool(tool, tool.get("parameters")) for tool in request.get("tools") or () if _has_name(tool)]
    choice = request.get("tool_choice")
    if isinstance(choice, dict) and "name" in choice:
        choice = {"type": "function", "function": {"name": choice["name"]}}
    chat = {**_same(request), "messages": messages, "max_tokens": request.get("max_output_tokens")}
    form = (request.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": form}
    if (request.get("reasoning") or {}).get("effort"):
        chat["reasoning_effort"] = request["reasoning"]["effort"]
    return {**chat, **_tools(tools, choice), "parallel_tool_calls": request.get("parallel_tool_calls")}


def of_messages(request: dict[str, Any]) -> Chat:
    messages: list[Message] = []
    if request.get("system"):
        messages.append({"role": "system", "content": _plain(request["system"])})
    for message in request["messages"]:
        _add_blocks(messages, message)
    tools = [_tool(tool, tool.get("input_schema")) for tool in request.get("tools") or () if _has_name(tool)]
    asked = request.get("tool_choice") or {}
    names = {"auto": "auto", "any": "required", "none": "none"}
    choice: Any = names.get(str(asked.get("type")))
    if asked.get("type") == "tool":
        choice = {"type": "function", "function": {"name": asked.get("name")}}
    chat = {**_same(request), "messages": messages, "max_tokens": request.get("max_tokens")}
    if request.get("stop_sequences"):
        chat["stop"] = request["stop_sequences"]
    form = (request.get("output_config") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
    if (request.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
        chat["reasoning_effort"] = "medium"
    return {**chat, **_tools(tools, choice), "parallel_tool_calls": not asked.get("disable_parallel_tool_use")}


def _same(request: dict[str, Any]) -> Chat:
    return {name: request[name] for name in (*_SAME, *_SAME_PENALTIES) if request.get(name) is not None}


def _tools(tools: list[dict[str, Any]], choice: Any) -> Chat:
    return {"tools": tools, "tool_choice": choice or "auto"} if tools else {}


def _has_name(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str)


def _tool(tool: dict[str, Any], parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool["name"], "parameters": parameters}}


def _without_system(messages: list[Message]) -> list[Message]:
    """Instructions are not carried over from the response before."""
    return [message for message in messages if message["role"] != "system"]


def _add_item(messages: list[Message], item: dict[str, Any]) -> None:
    kind = item.get("type")
    if kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments", item.get("input"))
        _add_call(messages, item.get("call_id"), str(item.get("name")), str(arguments))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        content = _plain(item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    elif kind in (None, "message"):
        role = "system" if item.get("role") == "developer" else item.get("role")
        messages.append({"role": role, "content": _parts(item.get("content"))})


def _add_blocks(messages: list[Message], message: dict[str, Any]) -> None:
    content = message.get("content")
    role = message.get("role")
    if not isinstance(content, list):
        messages.append({"role": role, "content": content})
        return
    rest = []
    for block in content:
        if block.get("type") == "tool_use":
            continue
        if block.get("type") == "tool_result":
            text = _plain(block.get("content"))
            messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
        elif block.get("type") not in ("thinking", "redacted_thinking"):
            rest.append(block)
    if rest:
        messages.append({"role": role, "content": _parts(rest)})
    for block in content:
        if block.get("type") == "tool_use":
            arguments = json.dumps(block.get("input"), ensure_ascii=False)
            _add_call(messages, block.get("id"), str(block.get("name")), arguments)


def _add_call(messages: list[Message], call_id: Any, name: str, arguments: str) -> None:
    """Calls that follow each other, or an answer's text, are one message of the assistant."""
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1] = {**messages[-1], "tool_calls": [*messages[-1].get("tool_calls", ()), call]}


def _parts(content: Any) -> Any:
    """Content in chat's form: a text where it is nothing else."""
    if not isinstance(content, list):
        return content
    if all(isinstance(part, dict) and part.get("type") in _TEXTS for part in content):
        return _plain(content)
    return [{**part, "type": "text"} if part.get("type") in _TEXTS else part for part in content]


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", part.get("refusal", ""))) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)
