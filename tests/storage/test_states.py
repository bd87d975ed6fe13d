from collections.abc import Iterable
from enum import StrEnum
from itertools import product

import pytest

from storage.errors import IllegalMove
from storage.states import (
    GROUP_MOVES,
    RUN_MOVES,
    SESSION_MOVES,
    VERSION_MOVES,
    GroupState,
    RunState,
    SessionState,
    VersionState,
    check_move,
)

# As the design names them, written down a second time.
_LEGAL = {
    SessionState: "open-closed closed-open closed-skipped",
    GroupState: "ready-scored ready-skipped scored-trained scored-skipped scored-eval",
    VersionState: "trained-verified verified-live live-standby standby-live standby-retired"
    " trained-rejected verified-rejected live-rejected",
    RunState: "requested-running requested-skipped requested-failed running-succeeded running-failed running-skipped",
}


def _all(kind: Iterable[StrEnum], pairs: str) -> list[tuple[str, str, bool]]:
    legal = {tuple(pair.split("-")) for pair in pairs.split()}
    names = [str(state) for state in kind]
    return [(old, new, (old, new) in legal) for old, new in product(names, names)]


@pytest.mark.parametrize(("old", "new", "legal"), _all(SessionState, _LEGAL[SessionState]))
def test_moves_of_a_session(old: str, new: str, legal: bool) -> None:
    assert (SessionState(new) in SESSION_MOVES[SessionState(old)]) is legal


@pytest.mark.parametrize(("old", "new", "legal"), _all(GroupState, _LEGAL[GroupState]))
def test_moves_of_a_group(old: str, new: str, legal: bool) -> None:
    assert (GroupState(new) in GROUP_MOVES[GroupState(old)]) is legal


@pytest.mark.parametrize(("old", "new", "legal"), _all(VersionState, _LEGAL[VersionState]))
def test_moves_of_a_version(old: str, new: str, legal: bool) -> None:
    assert (VersionState(new) in VERSION_MOVES[VersionState(old)]) is legal


@pytest.mark.parametrize(("old", "new", "legal"), _all(RunState, _LEGAL[RunState]))
def test_moves_of_a_run(old: str, new: str, legal: bool) -> None:
    if legal:
        check_move(RUN_MOVES, RunState(old), RunState(new), "run 7")
    else:
        with pytest.raises(IllegalMove, match=f"run 7 cannot go from {old} to {new}"):
            check_move(RUN_MOVES, RunState(old), RunState(new), "run 7")


def test_the_text_says_what_is_allowed() -> None:
    with pytest.raises(IllegalMove, match=r"allowed: rejected, verified\)"):
        check_move(VERSION_MOVES, VersionState.TRAINED, VersionState.LIVE, "version 3")
    with pytest.raises(IllegalMove, match="it is final"):
        check_move(VERSION_MOVES, VersionState.RETIRED, VersionState.LIVE, "version 3")
