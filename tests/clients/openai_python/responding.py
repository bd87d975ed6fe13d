"""The scenes of the responses API."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.clients.program import CALLS, SCHEMAS, Run, questions, use

Document = dict[str, Any]
TOOLS: Any = [
    {"type": "function", "name": name, "description": name, "parameters": schema} for name, schema in SCHEMAS.items()
]


class Report(BaseModel):
    city: str
    degrees: int


def settings(run: Run) -> Document:
    return {"base_url": run.base_url, "api_key": "sk-agent", "default_headers": run.headers}


def asked(run: Run, items: list[Any], number: int = 0) -> Document:
    """The arguments of call ``number`` of the conversation."""
    given: Document = {"model": run.model, "input": items, "tools": TOOLS, "temperature": 0.7}
    if run.metadata:
        given["metadata"] = run.metadata
    if run.last and number == CALLS - 1:
        given["extra_headers"] = run.last
    return given


def results(response: Any) -> list[Document]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": use(item.name, json.loads(item.arguments))}
        for item in response.output
        if item.type == "function_call"
    ]


def items(run: Run) -> list[Document]:
    """Tools, several turns; every request holds the whole conversation."""
    conversation: list[Any] = []
    seen: list[Document] = []
    with OpenAI(**settings(run)) as api:
        for question in questions(run):
            conversation.append({"role": "user", "content": question})
            while True:
                response = api.responses.create(**asked(run, conversation, len(seen)), instructions="Know the weather.")
                seen.append(response.model_dump(warnings=False))
                conversation += response.output
                if not (given := results(response)):
                    break
                conversation += given
    return seen


def previous(run: Run) -> list[Document]:
    """The same; a request holds what is new, and names the response that it continues."""
    seen: list[Document] = []
    before: Any = None
    with OpenAI(**settings(run)) as api:
        for question in questions(run):
            new: list[Any] = [{"role": "user", "content": question}]
            while new:
                response = api.responses.create(**asked(run, new, len(seen)), previous_response_id=before)
                seen.append(response.model_dump(warnings=False))
                before, new = response.id, results(response)
        assert api.responses.retrieve(before).output_text == response.output_text
    return seen


async def stream(run: Run) -> list[Any]:
    """The same as a stream, by the helper that joins events; every event is kept."""
    conversation: list[Any] = []
    seen: list[Any] = []
    number = 0
    async with AsyncOpenAI(**settings(run)) as api:
        for question in questions(run):
            conversation.append({"role": "user", "content": question})
            while True:
                async with api.responses.stream(**asked(run, conversation, number)) as events:
                    seen += [event.model_dump(warnings=False) async for event in events]
                    response = await events.get_final_response()
                number += 1
                conversation += [item.to_dict() for item in response.output]
                for item in conversation:
                    item.pop("parsed_arguments", None)
                if not (given := results(response)):
                    break
                conversation += given
    return seen


def structured(run: Run) -> Any:
    with OpenAI(**settings(run)) as api:
        parsed = api.responses.parse(model=run.model, input="Report from Lyon", text_format=Report)
        assert isinstance(parsed.output_parsed, Report)
        return parsed.output_parsed.model_dump()


SCENES = {
    "responses": items,
    "responses by id": previous,
    "responses stream": stream,
    "responses structured": structured,
}
