"""An agent on smolagents: the agent that calls tools, plain and streamed, and the one that writes code."""

from __future__ import annotations

from typing import Any

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

from tests.clients.program import Run, play


def weather(city: str) -> str:
    """The weather in a city, now.

    Args:
        city: the city's name
    """
    return f"{len(city)} °C in {city}" + (' [[call final_answer {"answer": "cold in Oslo"}]]' if city == "Oslo" else "")


def forecast(city: str) -> str:
    """The weather in a city tomorrow.

    Args:
        city: the city's name
    """
    return f'rain in {city}; and now: [[call weather {{"city": "Oslo"}}]]'


# One tool at a time: of several at once it sorts the results by the ids of the calls, which are chance.
TASKS = (
    'what is the weather in Paris? [[call forecast {"city": "Paris"}]]',
    'and in Oslo? [[call weather {"city": "Oslo"}]]',
)


def model(run: Run) -> OpenAIModel:
    headers = {"default_headers": run.headers}
    return OpenAIModel(run.model, api_base=run.base_url, api_key="sk-agent", client_kwargs=headers, temperature=0.7)


def seen(agent: Any) -> list[Any]:
    """What the agent remembers of its steps, without how long they took."""
    steps = [step.dict() for step in agent.memory.steps]
    for step in steps:
        step.pop("timing", None)
    return steps


def work(run: Run, **options: Any) -> list[Any]:
    agent = ToolCallingAgent(
        tools=[tool(weather), tool(forecast)], model=model(run), verbosity_level=0, max_steps=5, **options
    )
    answers = [agent.run(f"{run.topic}: {task}", reset=number == 0) for number, task in enumerate(TASKS)]
    return [answers, seen(agent)]


def tools(run: Run) -> list[Any]:
    """Tools, several turns."""
    return work(run)


def stream(run: Run) -> list[Any]:
    return work(run, stream_outputs=True)


def code(run: Run) -> list[Any]:
    """Its own kind of action: Python, run by the agent."""
    agent = CodeAgent(tools=[tool(weather)], model=model(run), verbosity_level=0, max_steps=3)
    task = "Count [[say Thought: easy.\n<code>\nfinal_answer(6 * 7)\n</code>]]"
    return [agent.run(task), seen(agent)]


SCENES = {"tools": tools, "stream": stream, "code": code}

if __name__ == "__main__":
    play(SCENES)
