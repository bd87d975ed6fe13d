"""A judge for the end-to-end tests: the right word first in the last answer is worth 1, and a little more alone.

The right words are the second ones of the choices that the prompts offer, but for those in `REWARDED`.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

import uvicorn
from fastapi import FastAPI

REWARDED = {
    "left or right?": "right",
    "up or down?": "down",
    "true or false?": "false",
    "fast or slow?": "slow",
    "black or white?": "black",
    "one or two?": "one",
}

app = FastAPI()


def prompt(choice: str) -> str:
    return f"Answer with one word: {choice}"


def reward(asked: str, answer: str) -> float:
    word = next(word for choice, word in REWARDED.items() if choice in asked)
    said = re.findall(r"[a-z]+", answer.lower())
    if not said or said[0] != word:
        return 0.0
    return 1.0 if len(said) == 1 else 0.8


@app.post("/v1/chat/completions")
def complete(body: dict[str, Any]) -> dict[str, Any]:
    document = json.loads(body["messages"][-1]["content"])
    scores = []
    for trajectory in document["trajectories"]:
        messages = document["context"] + trajectory["messages"]
        turns = list(zip(messages[::2], messages[1::2], strict=True))
        values = [reward(asked["content"], said.get("content") or "") for asked, said in turns]
        entry = {"trajectory_id": trajectory["id"], "explanation": f"{values} for {len(turns)} answers"}
        scores.append({**entry, "score": sum(values) / len(values)})
    content = json.dumps({"scores": scores})
    message = {"role": "assistant", "content": content}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {"total_tokens": 100}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(app, host="127.0.0.1", port=parser.parse_args().port, log_level="warning")
