"""An agent on the anthropic package: tools, streams, its own loop over tools, errors."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic, beta_tool

from tests.clients import program
from tests.clients.program import CALLS, SCHEMAS, Run, play, questions, use

Document = dict[str, Any]
TOOLS: Any = [{"name": name, "description": name, "input_schema": schema} for name, schema in SCHEMAS.items()]


def settings(run: Run) -> Document:
    # This package writes /v1 itself.
    base = run.base_url.removesuffix("/v1")
    return {"base_url": base, "api_key": "sk-agent", "default_headers": run.headers}


def asked(run: Run, messages: list[Any], number: int = 0) -> Document:
    """The arguments of call ``number`` of the conversation."""
    given: Document = {"model": run.model, "messages": messages, "tools": TOOLS, "max_tokens": 1000}
    if run.metadata:
        given["metadata"] = run.metadata
    if run.last and number == CALLS - 1:
        given["extra_headers"] = run.last
    return given


def results(message: Any) -> Document:
    """The message that answers the calls in ``message``."""
    uses = [block for block in message.content if block.type == "tool_use"]
    content = [{"type": "tool_result", "tool_use_id": one.id, "content": use(one.name, one.input)} for one in uses]
    return {"role": "user", "content": content}


def plain(run: Run) -> list[Document]:
    """Tools, several turns."""
    messages: list[Any] = []
    seen: list[Document] = []
    with Anthropic(**settings(run)) as api:
        for question in questions(run):
            messages.append({"role": "user", "content": question})
            while True:
                answer = api.messages.create(**asked(run, messages, len(seen)), system="You know the weather.")
                seen.append(answer.model_dump())
                messages.append({"role": "assistant", "content": answer.content})
                if answer.stop_reason != "tool_use":
                    break
                messages.append(results(answer))
    return seen


async def stream(run: Run) -> list[Any]:
    """The same, asynchronous, by the stream helper; every event is kept."""
    messages: list[Any] = []
    seen: list[Any] = []
    number = 0
    async with AsyncAnthropic(**settings(run)) as api:
        for question in questions(run):
            messages.append({"role": "user", "content": question})
            while True:
                async with api.messages.stream(**asked(run, messages, number)) as events:
                    seen += [event.model_dump(warnings=False) async for event in events]
                    answer = await events.get_final_message()
                number += 1
                seen.append(answer.model_dump(warnings=False))
                messages.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
                if answer.stop_reason != "tool_use":
                    break
                messages.append(results(answer))
    return seen


@beta_tool
def forecast(city: str, days: int) -> str:
    """The weather in a city, some days from now."""
    return program.forecast(city, days)


@beta_tool
def weather(city: str) -> str:
    """The weather in a city, now."""
    return program.weather(city)


def tools(run: Run) -> list[Any]:
    """The package's own loop over tools."""
    with Anthropic(**settings(run)) as api:
        question = f"{run.topic}: {questions(run)[1]}"
        messages: Any = [{"role": "user", "content": question}]
        given: Any = {"model": run.model, "max_tokens": 1000, "tools": [forecast, weather], "messages": messages}
        # vLLM keeps no threads: every request holds the whole conversation.
        runner = api.beta.messages.tool_runner(**given, thread=False)
        return [message.model_dump() for message in runner]


def raw(run: Run) -> list[Any]:
    messages = [{"role": "user", "content": "Say who you are"}]
    with Anthropic(**settings(run)) as api:
        answer = api.messages.with_raw_response.create(**asked(run, messages))
        return [answer.status_code, dict(answer.headers), answer.parse().model_dump()]


def errors(run: Run) -> list[Any]:
    """Errors of the API, as the package raises them."""
    messages = [{"role": "user", "content": "hello"}]
    found: list[Any] = []
    wrong: list[Document] = [{"model": "no-such-model"}, {"max_tokens": -1}]
    with Anthropic(**settings(run), max_retries=0) as api:
        for change in wrong:
            for streamed in (False, True):
                try:
                    api.messages.create(**(asked(run, messages) | change), stream=streamed)
                except anthropic.APIStatusError as error:
                    found.append([type(error).__name__, error.status_code, error.message, error.body])
    return found


def busy(run: Run) -> Document:
    """The server is busy at first: the package repeats the call by itself."""
    with Anthropic(**settings(run), max_retries=1) as api:
        return api.messages.create(**asked(run, [{"role": "user", "content": "hello"}])).model_dump()


def leaves(run: Run) -> list[Any]:
    """Goes away in the middle of a stream."""
    with Anthropic(**settings(run)) as api:
        given = asked(run, [{"role": "user", "content": "hello [[say something longer than a piece]]"}])
        for event in api.messages.create(**given, stream=True):
            if event.type == "content_block_delta":
                return [event.model_dump()]
    return []


def count(run: Run) -> Document:
    with Anthropic(**settings(run)) as api:
        counted = api.messages.count_tokens(model=run.model, messages=[{"role": "user", "content": "hello"}])
        return counted.model_dump()


SCENES = {
    "plain": plain,
    "stream": stream,
    "tools": tools,
    "raw": raw,
    "errors": errors,
    "busy": busy,
    "leaves": leaves,
    "count": count,
}

if __name__ == "__main__":
    play(SCENES)
