"""From which version a run starts, and what a damaged one costs: never a group."""

import json
import shutil
from pathlib import Path

import pytest

from storage import coordination, groups, versions
from storage.states import GroupState, RunState, VersionState
from storage.types import VersionNumber
from tests.trainer.test_training_runs import scored, state
from tests.trainer.workshop import Workshop
from trainer import parents
from trainer.errors import OtherBase
from trainer.jobs import OPTIMIZER, Parent

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def adapters(workshop: Workshop) -> Path:
    workshop.a_version(1)
    workshop.a_version(2)
    return workshop.folder / "adapters"


def choose(workshop: Workshop, fingerprint: str | None = None) -> parents.Choice:
    return parents.choose(workshop.db, workshop.settings(), fingerprint)


def test_the_newest_sound_version_is_the_parent(workshop: Workshop, adapters: Path) -> None:
    assert choose(workshop) == parents.Choice(Parent(version=2, adapter=adapters / "policy@2"))


@pytest.mark.parametrize(
    ("name", "damage", "text"),
    [
        (WEIGHTS, b"other weights", "has the sha256 "),
        (WEIGHTS, None, "cannot be read: No such file or directory"),
        ("adapter_config.json", b"{}", "has the sha256 "),
        ("manifest.json", b"{", "manifest.json cannot be read"),
        ("", None, "manifest.json cannot be read"),
    ],
)
def test_a_damaged_version_is_passed_over_and_named(
    workshop: Workshop, adapters: Path, name: str, damage: bytes | None, text: str
) -> None:
    path = adapters / "policy@2" / name
    if damage is not None:
        path.write_bytes(damage)
    elif name:
        path.unlink()
    else:
        shutil.rmtree(path)
    choice = choose(workshop)
    assert choice.parent == Parent(version=1, adapter=adapters / "policy@1")
    (note,) = choice.notes
    assert note.startswith("policy@2 is passed over as a parent: ")
    assert text in note


def test_where_no_version_is_sound_the_base_model_is_the_parent(workshop: Workshop, adapters: Path) -> None:
    shutil.rmtree(adapters)
    choice = choose(workshop)
    assert choice.parent == Parent(version=0)
    assert len(choice.notes) == 2


def test_a_rejected_version_is_no_parent_even_of_a_damaged_one(workshop: Workshop, adapters: Path) -> None:
    workshop.a_version(3)
    workshop.db.insert("versions", number=2, state=VersionState.REJECTED, created_at=0.0)
    shutil.rmtree(adapters / "policy@3")
    assert choose(workshop).parent.version == 1
    assert versions.get(workshop.db, VersionNumber(2)).state is VersionState.REJECTED


@pytest.mark.parametrize("damage", [None, b"other moments"])
def test_without_a_sound_optimizer_state_it_begins_anew_and_says_so(
    workshop: Workshop, adapters: Path, damage: bytes | None
) -> None:
    (adapters / "policy@2" / OPTIMIZER).unlink()
    if damage is not None:
        (adapters / "policy@2" / OPTIMIZER).write_bytes(damage)
    choice = choose(workshop)
    assert choice.parent == Parent(version=2, adapter=adapters / "policy@2", optimizer=False)
    assert choice.notes[0].startswith("the optimizer begins anew: ")


def test_the_optimizer_state_of_an_older_manifest_is_not_compared(workshop: Workshop, adapters: Path) -> None:
    path = adapters / "policy@2" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"][OPTIMIZER]
    path.write_text(json.dumps(manifest))
    assert choose(workshop).notes == ()
    (adapters / "policy@2" / OPTIMIZER).unlink()
    assert choose(workshop).notes == (f"the optimizer begins anew: {adapters / 'policy@2' / OPTIMIZER} is missing",)


def test_another_base_model_is_refused(workshop: Workshop, adapters: Path) -> None:
    assert choose(workshop, "f").parent.version == 2
    with pytest.raises(OtherBase, match="policy@2 was trained on another base model"):
        choose(workshop, "g")


def test_a_damaged_parent_costs_its_own_weights_and_status_says_so(workshop: Workshop, adapters: Path) -> None:
    (adapters / "policy@2" / WEIGHTS).write_bytes(b"other weights")
    coordination.beat(workshop.db, 0.0)
    group = workshop.group(workshop.many([0.0, 1.0]))
    request = workshop.ask()
    workshop.cycle().turn()
    run = workshop.all_runs()[-1]
    assert (run.id, run.state, run.version, run.parent) == (request.id, RunState.SUCCEEDED, 3, 1)
    assert state(workshop, group) is GroupState.TRAINED
    (note,) = run.metrics["notes"]
    told = coordination.trainer(workshop.db)
    assert told is not None
    assert told.problem == note
    assert "policy@2 is passed over as a parent" in note


def test_failures_that_no_group_can_have_caused_skip_none(workshop: Workshop) -> None:
    group = scored(workshop, [0.0, 1.0])
    workshop.worker.plan = ["refused"] * 4
    for _ in range(4):
        assert workshop.training().carry_out(workshop.ask()).state is RunState.FAILED
    assert groups.failed_runs(workshop.db, group.id) == 0
    assert state(workshop, group) is GroupState.SCORED
    workshop.worker.plan = ["failed"] * 3
    for _ in range(3):
        workshop.training().carry_out(workshop.ask())
    assert groups.failed_runs(workshop.db, group.id) == 3
    assert state(workshop, group) is GroupState.SKIPPED
