"""A training run: what it takes, what it leaves, and what a crash at any place costs."""

from pathlib import Path
from typing import Any

import pytest

from storage import groups, runs, sessions
from storage.states import GroupState, RunState
from storage.types import Group, RunId
from tests.storage.recorded import call_start, capture, identity
from tests.trainer.loopback import FakeModels
from tests.trainer.workshop import METRICS, Died, Workshop, score
from trainer import weights
from trainer.errors import NoWeights
from trainer.jobs import OPTIMIZER
from trainer.publication import MANIFEST

SPREAD = 0.05


def scored(workshop: Workshop, rewards: list[float | None], scenario: str = "task", **start: Any) -> Group:
    group = workshop.group(workshop.many(rewards, scenario, **start))
    assert score(workshop.db, group, None, SPREAD)
    return groups.get(workshop.db, group.id)


def state(workshop: Workshop, group: Group) -> GroupState:
    return groups.get(workshop.db, group.id).state


def test_a_run_from_groups_to_a_version(workshop: Workshop) -> None:
    group, other = scored(workshop, [0.0, 1.0]), scored(workshop, [0.5, 0.25, 0.75], "other")
    request = workshop.ask(learning_rate=0.01)
    run = workshop.training().carry_out(request)
    assert (run.id, run.state, run.reason, run.version, run.parent) == (request.id, RunState.SUCCEEDED, None, 1, 0)
    assert run.metrics == METRICS
    assert (run.settings["learning_rate"], run.settings["loss"]) == (0.01, "cispo")
    for taken in (group, other):
        assert state(workshop, taken) is GroupState.TRAINED
        assert groups.get(workshop.db, taken.id).run == run.id
        assert {workshop.outcome(member.session) for member in taken.members} == {("trained", None, run.id)}
    (job,) = workshop.worker.jobs
    assert (job.kind, job.base_model, job.parent.adapter) == ("train", "/models/small", None)
    assert job.target == workshop.folder / "adapters" / "policy@1"
    (batch,) = workshop.worker.batches
    assert batch.advantages.tolist() == [-0.5, 0.5, 0.0, -0.25, 0.25]
    assert [sequence.ids.tolist() for sequence in batch.sequences] == [[1, 2, 3]] * 5
    assert not (workshop.folder / "jobs" / run.id).exists()
    # There is nothing left for a second one.
    assert workshop.training().carry_out(workshop.ask()).state is RunState.SKIPPED


def test_every_path_of_a_session_has_its_advantage_and_each_token_counts_once(workshop: Workshop) -> None:
    whole = workshop.closed("whole", reward=1.0)
    for prompt in ([1, 2], [1, 2, 9], [7]):
        workshop.call(call_start("split"), f"from {prompt}", capture(prompt, [3]))
    split = workshop.closed("split", reward=0.0, tokens=capture([8], [3]))
    score(workshop.db, workshop.group([whole, split]), None, SPREAD)
    workshop.training().carry_out(workshop.ask())
    (batch,) = workshop.worker.batches
    assert batch.advantages.tolist() == [0.5, -0.5, -0.5, -0.5, -0.5]
    assert [sequence.trained_tokens for sequence in batch.sequences] == [1] * 5


def test_a_session_whose_ids_the_model_does_not_know_is_left_out_and_the_others_are_trained(
    workshop: Workshop, models: FakeModels, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text('{"vocab_size": 100}')
    models.document = {"data": [{"id": "small", "root": str(base), "parent": None}]}
    known = workshop.many([0.0, 1.0, 0.5])
    foreign = workshop.closed("foreign", reward=9.0, tokens=capture([1, 100], [3]))
    group = workshop.group([*known, foreign])
    score(workshop.db, group, None, SPREAD)
    hopeless = workshop.group([
        workshop.closed("h1", reward=0.0, tokens=capture([1, 2], [500])),
        workshop.closed("h2", reward=1.0),
    ])  # fmt: skip
    score(workshop.db, hopeless, None, SPREAD)
    run = workshop.training().carry_out(workshop.ask())
    reason = "a token id of it is not below 100, the number of tokens that the model knows"
    assert run.state is RunState.SUCCEEDED
    assert workshop.outcome(foreign) == ("skipped", reason, run.id)
    assert {workshop.outcome(session) for session in known} == {("trained", None, run.id)}
    (batch,) = workshop.worker.batches
    assert batch.advantages.tolist() == [-0.5, 0.5, 0.0], "the one that is left out does not enter the mean"
    assert state(workshop, hopeless) is GroupState.SKIPPED
    first, second = hopeless.members
    assert workshop.outcome(first.session) == ("skipped", reason, run.id)
    assert workshop.outcome(second.session) == (
        "skipped", "no variance among the sessions that have tokens to train", run.id,
    )  # fmt: skip


def test_only_named_agents_are_trained(workshop: Workshop) -> None:
    for name, reward in (("one", 0.0), ("two", 1.0)):
        workshop.call(call_start(name, agent="planner"), "a plan", capture([7], [8]))
        workshop.closed(name, reward=reward)
    both = [found for name in ("one", "two") if (found := sessions.newest(workshop.db, identity(name)))]
    score(workshop.db, workshop.group(both), None, SPREAD)
    settings: dict[str, Any] = {"train": {"agents": ["planner"]}}
    assert workshop.training(**settings).carry_out(workshop.ask()).state is RunState.SUCCEEDED
    (batch,) = workshop.worker.batches
    assert [sequence.ids.tolist() for sequence in batch.sequences] == [[7, 8]] * 2


def test_what_the_engine_cannot_tell_takes_the_adapter_of_the_version_that_sampled_it(workshop: Workshop) -> None:
    for number in (1, 2, 3):
        workshop.a_version(number)
    greedy = [
        workshop.closed(f"of {version}", reward=version / 4, version=version, tokens=capture([1], [2], temperature=0.0))
        for version in (0, 1, 2, 3)
    ]
    score(workshop.db, workshop.group(greedy), None, SPREAD)
    (workshop.folder / "adapters" / "policy@2" / "adapter_model.safetensors").write_bytes(b"damaged")
    run = workshop.training().carry_out(workshop.ask())
    assert run.state is RunState.SUCCEEDED
    (job,) = workshop.worker.jobs
    assert job.parent.version == 3
    assert list(job.samplers) == [1], "the base needs no adapter, and the parent's is there"
    (batch,) = workshop.worker.batches
    assert [int(one.version[one.trained][0]) for one in batch.sequences] == [0, 1, 3]
    ended = workshop.outcome(greedy[2].key)
    assert ended is not None
    assert ended[0] == "skipped"
    assert "sampled under temperature 0, and its logprobs cannot be computed again: " in str(ended[1])
    assert "policy@2" in str(ended[1])


def test_the_next_run_starts_from_the_last_version(workshop: Workshop) -> None:
    for number in (1, 2):
        scored(workshop, [0.0, 1.0])
        assert workshop.training().carry_out(workshop.ask()).version == number
    assert workshop.worker.jobs[1].parent.version == 1
    assert workshop.worker.brought == [[], ["adapter_config.json", "adapter_model.safetensors", MANIFEST, OPTIMIZER]]


def test_a_run_of_one_scenario_leaves_the_others(workshop: Workshop) -> None:
    group, other = scored(workshop, [0.0, 1.0]), scored(workshop, [0.0, 1.0], "other")
    assert workshop.training().carry_out(workshop.ask("other")).state is RunState.SUCCEEDED
    assert (state(workshop, group), state(workshop, other)) == (GroupState.SCORED, GroupState.TRAINED)


def test_after_a_failed_run_the_groups_are_trained_once(workshop: Workshop) -> None:
    group = scored(workshop, [0.0, 1.0])
    workshop.worker.plan = ["failed"]
    failed = workshop.training().carry_out(workshop.ask())
    assert (failed.state, failed.reason, failed.version) == (RunState.FAILED, "the loss is not a number", 1)
    assert state(workshop, group) is GroupState.SCORED
    assert [workshop.outcome(member.session) for member in group.members] == [None, None]
    again = workshop.training().carry_out(workshop.ask())
    assert (again.state, again.version, again.parent) == (RunState.SUCCEEDED, 2, 0)
    assert {workshop.outcome(member.session) for member in group.members} == {("trained", None, again.id)}
    assert workshop.training().carry_out(workshop.ask()).state is RunState.SKIPPED
    assert len(workshop.worker.jobs) == 2


def test_a_worker_that_dies_after_it_published_has_done_its_work(workshop: Workshop) -> None:
    group = scored(workshop, [0.0, 1.0])
    workshop.worker.plan = ["failed late"]
    run = workshop.training().carry_out(workshop.ask())
    assert (run.state, run.metrics, run.version) == (RunState.SUCCEEDED, METRICS, 1)
    assert state(workshop, group) is GroupState.TRAINED


def test_a_fault_that_nobody_foresaw_ends_the_run_and_is_heard(workshop: Workshop) -> None:
    group = scored(workshop, [0.0, 1.0])
    workshop.worker.plan = ["a fault"]
    with pytest.raises(ZeroDivisionError):
        workshop.training().carry_out(workshop.ask())
    (run,) = workshop.all_runs()
    assert (run.state, run.reason) == (RunState.FAILED, "ZeroDivisionError: division by zero")
    assert state(workshop, group) is GroupState.SCORED


def killed(workshop: Workshop, how: str) -> Group:
    """A run during which the trainer dies; the next one opens the data folder again."""
    group = scored(workshop, [0.0, 1.0])
    workshop.worker.plan = [how]
    with pytest.raises(Died):
        workshop.training().carry_out(workshop.ask())
    workshop.restart()
    return group


def test_a_version_that_was_published_before_the_crash_is_adopted(workshop: Workshop) -> None:
    group = killed(workshop, "died late")
    workshop.training().adopt()
    (run,) = workshop.all_runs()
    assert (run.state, run.version, run.metrics, run.reason) == (RunState.SUCCEEDED, 1, METRICS, None)
    assert state(workshop, group) is GroupState.TRAINED
    assert {workshop.outcome(member.session) for member in group.members} == {("trained", None, run.id)}
    assert list((workshop.folder / "jobs").iterdir()) == []
    workshop.training().adopt()
    assert len(workshop.all_runs()) == 1


def test_a_version_whose_groups_another_run_trained_is_removed(workshop: Workshop) -> None:
    group = killed(workshop, "died late")
    # As an older trainer did: it began the next run before it settled the last one.
    other = workshop.training().carry_out(workshop.ask())
    assert other.state is RunState.SUCCEEDED
    workshop.training().adopt()
    first, second = workshop.all_runs()
    assert (first.state, second.state) == (RunState.FAILED, RunState.SUCCEEDED)
    assert first.reason == "its groups were trained or skipped without it: what it published was removed"
    assert {workshop.outcome(member.session) for member in group.members} == {("trained", None, other.id)}
    assert [path.name for path in (workshop.folder / "adapters").iterdir()] == ["policy@2"]


def test_a_trainer_that_is_stopped_again_and_again_loses_no_group(workshop: Workshop) -> None:
    group = killed(workshop, "died early")
    for _ in range(4):
        workshop.training().adopt()
        workshop.worker.plan = ["died early"]
        with pytest.raises(Died):
            workshop.training().carry_out(workshop.ask())
    workshop.training().adopt()
    assert [run.state for run in workshop.all_runs()] == [RunState.FAILED] * 5
    assert state(workshop, group) is GroupState.SCORED


def test_a_crash_before_the_publication_fails_the_run_and_keeps_its_groups(workshop: Workshop) -> None:
    group = killed(workshop, "died early")
    workshop.training().adopt()
    (run,) = workshop.all_runs()
    assert (run.state, run.version) == (RunState.FAILED, 1)
    assert run.reason == "the trainer stopped during this run; its groups wait for the next one"
    assert state(workshop, group) is GroupState.SCORED
    assert list((workshop.folder / "adapters").iterdir()) == [], "what it had begun to write is gone"
    again = workshop.training().carry_out(workshop.ask())
    assert (again.state, again.version, again.parent) == (RunState.SUCCEEDED, 2, 0)


def test_a_folder_of_somebody_else_does_not_stop_the_start(workshop: Workshop) -> None:
    killed(workshop, "died early")
    foreign = workshop.folder / "adapters" / "policy@1"
    foreign.mkdir()
    (foreign / "manifest.json").write_text("{}")
    workshop.training().adopt()
    (run,) = workshop.all_runs()
    assert run.state is RunState.FAILED
    assert "manifest cannot be read" in (run.reason or "")
    assert foreign.exists()


def test_a_crash_before_the_run_began_is_said(workshop: Workshop) -> None:
    request = workshop.ask()
    runs.create(workshop.db, request)
    workshop.restart()
    workshop.training().adopt()
    run = runs.get(workshop.db, request.id)
    assert (run.state, run.reason) == (RunState.FAILED, "the trainer stopped before this run began: ask again")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"learning_rat": 1}, "setting learning_rat: Extra inputs are not permitted"),
        ({"steps": 0}, "setting steps: Input should be greater than or equal to 1"),
        ({"loss": "ppo"}, "setting loss: Input should be 'grpo' or 'cispo'"),
    ],
)
def test_a_wrong_setting_is_named(workshop: Workshop, settings: dict[str, Any], reason: str) -> None:
    group = scored(workshop, [0.0, 1.0])
    run = workshop.training().carry_out(workshop.ask(**settings))
    assert (run.state, run.reason, run.version) == (RunState.FAILED, reason, None)
    assert state(workshop, group) is GroupState.SCORED


def test_nothing_to_train_says_what_is_missing(workshop: Workshop, models: FakeModels) -> None:
    models.status = 500  # vLLM need not be there for that
    workshop.many([None, None, None])
    workshop.group(workshop.many([None, None]))
    scored(workshop, [0.0, 1.0], "elsewhere")
    run = workshop.training().carry_out(workshop.ask("task"))
    assert (run.state, run.version) == (RunState.SKIPPED, None)
    assert run.reason == (
        "no scored group of scenario task waits to be trained; without scores yet: 1 group; "
        "without 2 to 4 of one scenario: 3 closed sessions"
    )


def test_without_vllm_the_run_fails_and_its_groups_wait(workshop: Workshop, models: FakeModels) -> None:
    group = scored(workshop, [0.0, 1.0])
    models.status = 503
    run = workshop.training().carry_out(workshop.ask())
    assert run.state is RunState.FAILED
    assert "does not tell where its weights lie" in (run.reason or "")
    assert state(workshop, group) is GroupState.SCORED


def test_a_group_that_became_stale_is_skipped(workshop: Workshop) -> None:
    stale = scored(workshop, [0.0, 1.0])
    workshop.a_version(1)
    fresh = scored(workshop, [0.0, 1.0], version=1)
    workshop.a_version(2)
    run = workshop.training(max_staleness=1).carry_out(workshop.ask())
    assert (run.state, run.version, run.parent) == (RunState.SUCCEEDED, 3, 2)
    assert (state(workshop, stale), state(workshop, fresh)) == (GroupState.SKIPPED, GroupState.TRAINED)
    reason = "stale: sampled 2 versions before the newest"
    assert {workshop.outcome(member.session) for member in stale.members} == {("skipped", reason, run.id)}
    assert groups.rows_of_run(workshop.db, run.id) == [
        {"id": stale.id, "scenario": "task", "state": "skipped", "reason": reason, "replayed": False, "spread": 1.0},
        {"id": fresh.id, "scenario": "task", "state": "trained", "reason": None, "replayed": False, "spread": 1.0},
    ]
    skipped = sessions.skipped_by_run(workshop.db, run.id)
    assert [(row["episode"], row["reason"]) for row in skipped] == [(1, reason)] * 2


def test_a_job_that_cannot_be_written_fails_the_run(workshop: Workshop) -> None:
    group = scored(workshop, [0.0, 1.0])
    (workshop.folder / "jobs").write_text("a file where a folder should be: as a full disk")
    run = workshop.training().carry_out(workshop.ask())
    assert run.state is RunState.FAILED
    assert (run.reason or "").startswith("the job could not be written: ")
    assert state(workshop, group) is GroupState.SCORED


def test_evaluation_is_never_trained(workshop: Workshop) -> None:
    group = workshop.group(workshop.many([0.0, 1.0], split="eval"))
    score(workshop.db, group, None, SPREAD)
    assert workshop.training().carry_out(workshop.ask()).state is RunState.SKIPPED


def test_the_weights_are_those_that_vllm_serves(workshop: Workshop, models: FakeModels) -> None:
    assert weights.root(workshop.settings()) == "/models/small"
    assert weights.root(workshop.settings(model="small", upstream_api_key="key")) == "/models/small"
    assert models.keys[-1] == "Bearer key"
    models.document = {"data": [{"id": "org/hub"}]}
    assert weights.root(workshop.settings()) == "org/hub"
    dead = "http://127.0.0.1:9"
    assert weights.root(workshop.settings(upstream=f"{dead},{workshop.upstream}")) == "org/hub"


@pytest.mark.parametrize(
    ("document", "changes", "text"),
    [
        (None, {"upstream": ()}, "no vLLM server is configured: set SLIPSTREAM_UPSTREAM"),
        (None, {"model": "large"}, "does not serve large: set SLIPSTREAM_MODEL"),
        ("<html>", {}, "does not tell where its weights lie"),
        ([], {}, "does not tell where its weights lie"),
        ({}, {}, "does not tell where its weights lie"),
        (None, {"upstream": "http://[bad"}, "does not tell where its weights lie"),
    ],
)
def test_where_nobody_tells_the_weights(
    workshop: Workshop, models: FakeModels, document: object, changes: dict[str, Any], text: str
) -> None:
    if document is not None:
        models.document = document
    with pytest.raises(NoWeights, match=text):
        weights.root(workshop.settings(**changes))


def test_an_ended_run_is_the_newest(workshop: Workshop) -> None:
    scored(workshop, [0.0, 1.0])
    run = workshop.training().carry_out(workshop.ask())
    newest = runs.newest(workshop.db)
    assert newest is not None
    assert newest.id == run.id == RunId(run.id)
