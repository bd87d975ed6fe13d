"""An agent on openai-agents: its loop over tools, a sub-agent, streams, structured output."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.clients.program import Run, forecast, play, questions, weather

TOOLS = [function_tool(weather), function_tool(forecast)]


class Report(BaseModel):
    city: str
    degrees: int


def model(run: Run) -> OpenAIChatCompletionsModel:
    api = AsyncOpenAI(base_url=run.base_url, api_key="sk-agent", default_headers=run.headers)
    return OpenAIChatCompletionsModel(run.model, api)


def seen(result: Any) -> list[Any]:
    """What a run of the agent gave: the answers of the model, what the agent made of them, the last output."""
    responses = [[item.model_dump() for item in response.output] for response in result.raw_responses]
    items = [[item.type, item.agent.name, getattr(item, "output", None)] for item in result.new_items]
    usage = [
        [response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens]
        for response in result.raw_responses
    ]
    return [responses, items, usage, str(result.final_output)]


async def converse(run: Run, kind: Any) -> list[Any]:
    settings = ModelSettings(metadata=run.metadata or None)
    agent = Agent(name="weatherman", instructions="Know the weather.", tools=TOOLS, model=kind, model_settings=settings)
    history: Any = []
    found = []
    for question in questions(run):
        result = await Runner.run(agent, [*history, {"role": "user", "content": question}])
        found.append(seen(result))
        history = result.to_input_list()
    return found


async def chat(run: Run) -> list[Any]:
    """Tools, several turns."""
    return await converse(run, model(run))


async def stream(run: Run) -> list[Any]:
    agent = Agent(name="weatherman", tools=TOOLS, model=model(run))
    result = Runner.run_streamed(agent, questions(run)[0])
    events = [
        event.data.model_dump(warnings=False) if event.type == "raw_response_event" else [event.type]
        async for event in result.stream_events()
    ]
    return [events, seen(result)]


async def sub_agent(run: Run) -> list[Any]:
    """An agent as another's tool; it says its name in a header."""
    named = ModelSettings(extra_headers={"X-Agent": "forecaster"})
    sub = Agent(name="forecaster", tools=TOOLS, model=model(run), model_settings=named)
    head = Agent(name="head", tools=[sub.as_tool("ask_forecaster", "Ask for a forecast")], model=model(run))
    return seen(await Runner.run(head, run.topic + '. How will it be? [[call ask_forecaster {"input": "Oslo"}]]'))


async def structured(run: Run) -> list[Any]:
    agent = Agent(name="reporter", output_type=Report, model=model(run))
    result = await Runner.run(agent, "Report from Lyon", run_config=RunConfig(tracing_disabled=True))
    return [result.final_output.model_dump(), seen(result)]


async def responses(run: Run) -> list[Any]:
    """The same conversation by the responses API."""
    api = AsyncOpenAI(base_url=run.base_url, api_key="sk-agent", default_headers=run.headers)
    return await converse(run, OpenAIResponsesModel(run.model, api))


SCENES = {"chat": chat, "stream": stream, "sub-agent": sub_agent, "structured": structured, "responses": responses}

if __name__ == "__main__":
    set_tracing_disabled(disabled=True)
    play(SCENES)
