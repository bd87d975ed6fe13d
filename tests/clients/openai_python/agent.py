"""An agent on the openai package."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.clients.openai_python import responding
from tests.clients.program import CALLS, SCHEMAS, Run, play, questions, use

Document = dict[str, Any]
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


class Report(BaseModel):
    city: str
    degrees: int
    sunny: bool


def client(run: Run, **options: Any) -> OpenAI:
    return OpenAI(base_url=run.base_url, api_key="sk-agent", default_headers=run.headers, **options)


def asked(run: Run, messages: list[Any], number: int = 0) -> Document:
    """The arguments of call ``number`` of the conversation."""
    given: Document = {"model": run.model, "messages": messages, "tools": TOOLS, "temperature": 0.7}
    if run.metadata:
        given["metadata"] = run.metadata
    if run.last and number == CALLS - 1:
        given["extra_headers"] = run.last
    return given


def results(message: Any) -> list[Document]:
    """The tool messages that answer the calls in ``message``."""
    return [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": use(call.function.name, json.loads(call.function.arguments)),
        }
        for call in message.tool_calls
    ]


def plain(run: Run) -> list[Document]:
    """Tools, several turns."""
    messages: list[Any] = [{"role": "system", "content": "You know the weather."}]
    seen: list[Document] = []
    with client(run) as api:
        for question in questions(run):
            messages.append({"role": "user", "content": question})
            while True:
                answer = api.chat.completions.create(**asked(run, messages, len(seen)))
                seen.append(answer.model_dump())
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    break
                messages += results(message)
    return seen


async def asynchronous(run: Run) -> list[Document]:
    async with AsyncOpenAI(base_url=run.base_url, api_key="sk-agent", default_headers=run.headers) as api:
        return await converse(run, api)


async def parallel(run: Run) -> list[list[Document]]:
    """Several agents at once, alike but for their topic, on the same connections."""
    topics = [f"{run.topic} {number}" for number in range(4)]
    async with AsyncOpenAI(base_url=run.base_url, api_key="sk-agent", default_headers=run.headers) as api:
        return list(await asyncio.gather(*(converse(replace(run, topic=topic), api) for topic in topics)))


async def converse(run: Run, api: AsyncOpenAI) -> list[Document]:
    messages: list[Any] = [{"role": "system", "content": "You know the weather."}]
    seen: list[Document] = []
    for question in questions(run):
        messages.append({"role": "user", "content": question})
        while True:
            answer = await api.chat.completions.create(**asked(run, messages, len(seen)))
            seen.append(answer.model_dump())
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            messages += results(message)
    return seen


def stream(run: Run) -> list[Any]:
    """The same by the stream helper, which joins the pieces of tool calls; every event is kept."""
    messages: list[Any] = []
    seen: list[Any] = []
    turn = 0
    with client(run) as api:
        for question in questions(run):
            messages.append({"role": "user", "content": question})
            while True:
                given = asked(run, messages, turn) | {"stream_options": {"include_usage": True}}
                with api.chat.completions.stream(**given) as events:
                    seen += [event.model_dump(warnings=False) for event in events]
                    message = events.get_final_completion().choices[0].message
                turn += 1
                messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
                for call in messages[-1].get("tool_calls", []):
                    call["function"].pop("parsed_arguments", None)
                if not message.tool_calls:
                    break
                messages += results(message)
    return seen


async def async_stream(run: Run) -> list[Document]:
    messages = [{"role": "user", "content": questions(run)[0]}]
    async with AsyncOpenAI(base_url=run.base_url, api_key="sk-agent", default_headers=run.headers) as api:
        chunks = await api.chat.completions.create(**asked(run, messages), stream=True, n=2)
        return [chunk.model_dump() async for chunk in chunks]


def structured(run: Run) -> list[Any]:
    """Structured output, plain and as raw JSON schema."""
    with client(run) as api:
        given: Any = {"model": run.model, "messages": [{"role": "user", "content": "Report from Lyon"}]}
        parsed = api.chat.completions.parse(**given, response_format=Report)
        report = parsed.choices[0].message.parsed
        assert isinstance(report, Report)
        schema = {"name": "report", "schema": Report.model_json_schema(), "strict": True}
        form: Any = {"type": "json_schema", "json_schema": schema}
        answer = api.chat.completions.create(**given, response_format=form, extra_headers=run.last)
        return [report.model_dump(), Report.model_validate_json(answer.choices[0].message.content or "").model_dump()]


def raw(run: Run) -> list[Any]:
    """The response as it came: status, headers, bytes; plain and streamed."""
    messages = [{"role": "user", "content": "Say who you are"}]
    with client(run) as api:
        plain = api.chat.completions.with_raw_response.create(**asked(run, messages))
        found: list[Any] = [plain.status_code, dict(plain.headers), plain.text, plain.parse().model_dump()]
        with api.chat.completions.with_streaming_response.create(**asked(run, messages), stream=True) as response:
            return [*found, response.status_code, dict(response.headers), list(response.iter_lines())]


def errors(run: Run) -> list[Any]:
    """Errors of the API, as the package raises them."""
    messages = [{"role": "user", "content": "hello"}]
    wrong: list[Document] = [{"model": "no-such-model"}, {"messages": []}, {"model": 5}]
    found: list[Any] = []
    with client(run, max_retries=0) as api:
        for change in wrong:
            for streamed in (False, True):
                try:
                    api.chat.completions.create(**(asked(run, messages) | change), stream=streamed)
                except openai.APIStatusError as error:
                    told = [error.code, error.param, error.type]
                    found.append([type(error).__name__, error.status_code, error.message, error.body, *told])
    return found


def busy(run: Run) -> list[Any]:
    """The server is busy at first: the package repeats the call by itself."""
    with client(run, max_retries=1) as api:
        answer = api.chat.completions.with_raw_response.create(**asked(run, [{"role": "user", "content": "hello"}]))
        return [answer.retries_taken, answer.status_code, answer.parse().model_dump()]


def leaves(run: Run) -> list[Any]:
    """Goes away in the middle of a stream."""
    with client(run) as api:
        chunks = api.chat.completions.create(
            model=run.model, messages=[{"role": "user", "content": "hello"}], stream=True
        )
        for chunk in chunks:
            if chunk.choices[0].delta.content:
                chunks.close()
                return [chunk.model_dump()]
    return []


def completions(run: Run) -> list[Any]:
    """The older form: a text goes on."""
    given: Any = {"model": run.model, "prompt": f"{run.topic}: once upon", "max_tokens": 30}
    with client(run) as api:
        whole = api.completions.create(**given, n=2).model_dump()
        return [whole, *(chunk.model_dump() for chunk in api.completions.create(**given, stream=True))]


def embeddings(run: Run) -> list[Any]:
    """Numbers as floats, and as the package asks for them by itself: base64."""
    with client(run) as api:
        floats = api.embeddings.create(model=run.model, input=["one", "two"], encoding_format="float")
        return [floats.model_dump(), api.embeddings.create(model=run.model, input="one").model_dump()]


def models(run: Run) -> list[Any]:
    with client(run) as api:
        return sorted(model.id for model in api.models.list())


SCENES = {
    "plain": plain,
    "async": asynchronous,
    "parallel": parallel,
    "stream": stream,
    "async stream": async_stream,
    "structured": structured,
    "raw": raw,
    "errors": errors,
    "busy": busy,
    "leaves": leaves,
    "completions": completions,
    "embeddings": embeddings,
    "models": models,
    **responding.SCENES,
}

if __name__ == "__main__":
    play(SCENES)
