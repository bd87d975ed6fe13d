"""TRL's GRPOTrainer on a word task, with its own generation, in a process of its own.

Same model, rank, alpha, learning rate, prompts and number of rollouts; everything else is TRL's default, but for the
learning rate, which stays constant as ours does. Run as ``python -m scripts.bench.learning.peer PART MODEL RESULT``
(JSON of the part; a folder; a file to write).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.agents import words
from scripts.bench.learning.kept import Part
from scripts.bench.learning.playing import ATTEMPTS
from scripts.bench.learning.rounds import Curve, Round
from scripts.bench.learning.tasks import TASKS
from scripts.services import PROJECT, CannotStart
from storage.update_settings import UpdateSettings


def learn(part: Part, model: str) -> Curve:
    """Run ``part`` in a process. Raises `CannotStart` with the end of what it said."""
    with tempfile.TemporaryDirectory(prefix="slipstream-trl-") as folder:
        result, log = Path(folder) / "curve.json", Path(folder) / "log"
        command = [sys.executable, "-m", __name__, json.dumps(asdict(part)), model, str(result)]
        environment = {**os.environ, "VLLM_PLUGINS": "none", "PYTHONPATH": str(PROJECT)}
        with log.open("wb") as output:
            # Unsloth writes what it compiles into the current folder.
            ended = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=output, check=False)
        if ended.returncode or not result.exists():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise CannotStart(f"TRL's trainer ended with {ended.returncode}:\n{tail}")
        return Curve.read(json.loads(result.read_text()))


def train(part: Part, model: str) -> Curve:
    """Train in this process; a round is one of TRL's generation batches."""
    import unsloth  # noqa: F401  # before trl: without it TRL asks for a GPU where triton is installed
    from datasets import Dataset  # type: ignore[import-untyped]
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    ours = UpdateSettings()
    worths = TASKS[part.task].worths
    assert worths is not None
    rewarded: list[tuple[float, tuple[float, ...]]] = []
    began = time.monotonic()

    def reward(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
        found = [words.reward(completion[0]["content"], worths) for completion in completions]
        rewarded.append((time.monotonic() - began, tuple(found)))
        return found

    prompts = [[{"role": "user", "content": prompt}] for prompt in words.SCENARIOS.values()]
    size = len(prompts) * ATTEMPTS
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=1,
            num_generations=ATTEMPTS,
            max_completion_length=words.MAX_TOKENS,
            temperature=1.0,
            learning_rate=ours.learning_rate,
            lr_scheduler_type="constant",
            max_steps=part.rounds,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=True,
            seed=part.seed,
            model_init_kwargs={"dtype": "bfloat16"},
        )
        lora = LoraConfig(r=ours.rank, lora_alpha=ours.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            peft_config=lora,
        )
        began = time.monotonic()
        trainer.train()
        ended = time.monotonic() - began
    entropies = [row.get("entropy") for row in trainer.state.log_history if "reward" in row]
    return as_curve(rewarded, entropies, ended)


def as_curve(rewarded: list[tuple[float, tuple[float, ...]]], entropies: list[float | None], seconds: float) -> Curve:
    """A curve of what the reward function saw and when; an update has ended where the next generation has."""
    times = [at for at, _ in rewarded[1:]] + [seconds]
    entropies = entropies + [None] * (len(rewarded) - len(entropies))
    found = zip(rewarded, times, entropies, strict=False)
    return Curve(tuple(Round(rewards, at, entropy) for (_, rewards), at, entropy in found))


if __name__ == "__main__":
    wanted = Part(**json.loads(sys.argv[1]))
    Path(sys.argv[3]).write_text(json.dumps(train(wanted, sys.argv[2]).document()))
