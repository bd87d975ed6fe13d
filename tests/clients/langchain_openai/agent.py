"""An agent on langchain-openai: bound tools, streams, async, structured output."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.clients.program import CALLS, Run, forecast, play, questions, weather

TOOLS = {made.name: made for made in (tool(weather), tool(forecast))}


class Report(BaseModel):
    """A report."""

    city: str
    degrees: int


def model(run: Run, **options: Any) -> ChatOpenAI:
    given: Any = {"model": run.model, "base_url": run.base_url, "api_key": "sk-agent", "default_headers": run.headers}
    return ChatOpenAI(**given, temperature=0.7, **options)


def results(message: Any) -> list[ToolMessage]:
    return [TOOLS[call["name"]].invoke({**call, "type": "tool_call"}) for call in message.tool_calls]


def last(run: Run, number: int) -> dict[str, Any]:
    return {"extra_headers": run.last} if number == CALLS - 1 else {}


def chat(run: Run) -> list[Any]:
    """Tools, several turns."""
    return converse(run)


def responses(run: Run) -> list[Any]:
    """The same conversation by the responses API."""
    return converse(run, use_responses_api=True)


def converse(run: Run, **options: Any) -> list[Any]:
    bound = model(run, **options).bind_tools(list(TOOLS.values()))
    messages: list[BaseMessage] = [SystemMessage("You know the weather.")]
    number = 0
    for question in questions(run):
        messages.append(HumanMessage(question))
        while True:
            answer = bound.invoke(messages, **last(run, number))
            number += 1
            messages.append(answer)
            if not answer.tool_calls:
                break
            messages += results(answer)
    return [message.model_dump() for message in messages]


def stream(run: Run) -> list[Any]:
    bound = model(run, stream_usage=True).bind_tools(list(TOOLS.values()))
    messages: list[Any] = []
    seen: list[Any] = []
    number = 0
    for question in questions(run):
        messages.append(HumanMessage(question))
        while True:
            chunks = list(bound.stream(messages, **last(run, number)))
            number += 1
            seen += [chunk.model_dump() for chunk in chunks]
            answer: Any = chunks[0]
            for chunk in chunks[1:]:
                answer += chunk
            messages.append(answer)
            if not answer.tool_calls:
                break
            messages += results(answer)
    return seen


async def asynchronous(run: Run) -> list[Any]:
    bound = model(run)
    answers = await bound.abatch([[HumanMessage("Say who you are")], [HumanMessage("And who else?")]])
    return [answer.model_dump() for answer in answers]


def structured(run: Run) -> list[Any]:
    """By a JSON schema in the request, and by a tool."""
    found: Any = [
        model(run).with_structured_output(Report, method=method).invoke("Report from Lyon")
        for method in ("json_schema", "function_calling")
    ]
    return [report.model_dump() for report in found]


SCENES = {"chat": chat, "stream": stream, "async": asynchronous, "structured": structured, "responses": responses}

if __name__ == "__main__":
    play(SCENES)
