"""An agent on pydantic-ai: its loop over tools, streams, an output type."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.program import Run, forecast, play, questions, weather


class Report(BaseModel):
    city: str
    degrees: int


def model(run: Run) -> OpenAIChatModel:
    api = AsyncOpenAI(base_url=run.base_url, api_key="sk-agent", default_headers=run.headers)
    return OpenAIChatModel(run.model, provider=OpenAIProvider(openai_client=api))


def settings(run: Run) -> Any:
    """What goes into every call's body."""
    return {"extra_body": {"metadata": run.metadata}} if run.metadata else {}


async def chat(run: Run) -> list[Any]:
    """Tools, several turns."""
    return await converse(run, model(run))


async def responses(run: Run) -> list[Any]:
    """The same conversation by the responses API."""
    api = AsyncOpenAI(base_url=run.base_url, api_key="sk-agent", default_headers=run.headers)
    return await converse(run, OpenAIResponsesModel(run.model, provider=OpenAIProvider(openai_client=api)))


async def converse(run: Run, kind: Any) -> list[Any]:
    agent = Agent(kind, system_prompt="You know the weather.", tools=[weather, forecast])
    history: Any = []
    found: list[Any] = []
    for question in questions(run):
        result = await agent.run(question, message_history=history, model_settings=settings(run))
        history = result.all_messages()
        found.append([result.output, json.loads(result.new_messages_json())])
    return found


async def stream(run: Run) -> list[Any]:
    agent = Agent(model(run), tools=[weather, forecast])
    async with agent.run_stream(questions(run)[0], model_settings=settings(run)) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        return [pieces, json.loads(result.all_messages_json())]


async def output_tool(run: Run) -> list[Any]:
    """An output type by a tool: a weather call, then the report."""
    agent = Agent(model(run), output_type=Report, tools=[report_of])
    result = await agent.run('Report from Lyon [[call report_of {"city": "Lyon"}]]', model_settings=settings(run))
    return [result.output.model_dump(), json.loads(result.all_messages_json())]


def report_of(city: str) -> str:
    """What to report of a city."""
    return f'[[call final_result {{"city": "{city}", "degrees": {len(city)}}}]]'


async def native_output(run: Run) -> list[Any]:
    """An output type by a JSON schema in the request."""
    agent = Agent(model(run), output_type=NativeOutput(Report))
    result = await agent.run("Report from Lyon", model_settings=settings(run))
    return [result.output.model_dump(), json.loads(result.all_messages_json())]


SCENES = {
    "chat": chat,
    "stream": stream,
    "output tool": output_tool,
    "native output": native_output,
    "responses": responses,
}

if __name__ == "__main__":
    play(SCENES)
