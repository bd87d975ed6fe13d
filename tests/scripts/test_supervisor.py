"""Parts are kept running, and nothing of them is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.supervisor import Part, Supervisor


def shell(tmp_path: Path, name: str, script: str, patience: float = 120.0) -> Part:
    return Part(name, ["/bin/sh", "-c", script], os.environ, tmp_path / "logs" / f"{name}.log", patience)


def eventually(true: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"it did not come to pass in {seconds} s"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs (one that only waits to be reaped does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(part: Part) -> list[int]:
    """The whole numbers that a part has written."""
    return [int(line) for line in part.tail(100).split() if line.isdigit()]


def times(part: Part) -> list[float]:
    """The times with their nanoseconds that a part has written."""
    return [float(line) for line in part.tail(100).split() if line.replace(".", "", 1).isdigit() and "." in line]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def supervisor(told: list[str]) -> Iterator[Supervisor]:
    with Supervisor(told.append) as supervisor:
        yield supervisor


def test_a_part_runs_with_its_surroundings_and_log(supervisor: Supervisor, tmp_path: Path) -> None:
    part = Part(
        "p", ["/bin/sh", "-c", "echo $WORD; echo wrong >&2; sleep 60"], {"WORD": "hi"}, tmp_path / "a" / "p.log"
    )
    supervisor.start(part)
    eventually(lambda: part.tail() == "hi\nwrong")
    assert part.tail(1) == "wrong"
    assert supervisor.parts == (part,)


def test_a_dead_part_is_started_again_and_this_is_said(supervisor: Supervisor, told: list[str], tmp_path: Path) -> None:
    part = shell(tmp_path, "p", "echo $$; exit 3")
    supervisor.start(part)
    eventually(lambda: len(pids(part)) >= 2)
    assert told[0] == f"p ended with exit code 3; it is started again in 1 s (its log: {part.log})"
    assert part.restarts == 1
    eventually(lambda: len(told) == 2)
    assert "in 2 s" in told[1]


def test_a_killed_part_is_started_again_and_this_is_said(
    supervisor: Supervisor, told: list[str], tmp_path: Path
) -> None:
    part = shell(tmp_path, "p", "echo $$; exec sleep 60")
    supervisor.start(part)
    eventually(lambda: pids(part))
    os.kill(pids(part)[0], signal.SIGKILL)
    eventually(lambda: len(pids(part)) == 2)
    assert told == [f"p was killed by signal 9; it is started again in 1 s (its log: {part.log})"]
    assert alive(pids(part)[1])


def test_what_a_dead_part_left_behind_is_ended(supervisor: Supervisor, tmp_path: Path) -> None:
    """A worker of its own would hold its port."""
    part = shell(tmp_path, "p", "sleep 60 & echo $!; sleep 0.2; exit 1")
    supervisor.start(part)
    eventually(lambda: pids(part))
    left = pids(part)[0]
    eventually(lambda: not alive(left))


def test_a_part_that_dies_again_and_again_does_not_hold_up_the_others(
    supervisor: Supervisor, told: list[str], tmp_path: Path
) -> None:
    sick, well = shell(tmp_path, "sick", "exit 1"), shell(tmp_path, "well", "echo $$; exec sleep 60")
    sick.restarts = 10
    supervisor.start(sick)
    supervisor.start(well)
    eventually(lambda: "sick ended with exit code 1; it is started again in 30 s" in " ".join(told))
    eventually(lambda: pids(well))
    os.kill(pids(well)[0], signal.SIGKILL)
    eventually(lambda: len(pids(well)) == 2)
    assert sick.restarts == 10, "its pause is the longer one"


def test_a_part_that_cannot_be_started_again_is_tried_later(
    supervisor: Supervisor, told: list[str], tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    supervisor.start(Part("p", [str(program)], os.environ, tmp_path / "p.log"))
    program.unlink()
    eventually(lambda: len(told) == 2)
    assert told[1].startswith("p cannot be started: ")
    assert told[1].endswith("it is tried again in 30 s")


def test_a_program_that_does_not_exist(supervisor: Supervisor, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        supervisor.start(Part("p", [str(tmp_path / "nothing")], os.environ, tmp_path / "p.log"))
    assert supervisor.parts == ()


def test_stop_ends_the_whole_group(told: list[str], tmp_path: Path) -> None:
    part = shell(tmp_path, "p", "sleep 60 & echo $!; sh -c 'sleep 61 & echo $!; wait' & echo $!; wait")
    with Supervisor(told.append) as supervisor:
        supervisor.start(part)
        eventually(lambda: len(pids(part)) == 3)
        family = pids(part)
        assert all(alive(pid) for pid in family)
    eventually(lambda: not any(alive(pid) for pid in family))
    assert told == [], "a stop is no accident"
    assert supervisor.parts == ()
    supervisor.stop()


def test_who_ignores_sigterm_is_killed_with_its_family(tmp_path: Path) -> None:
    part = shell(tmp_path, "p", "trap '' TERM; (trap '' TERM; sleep 3600) & echo $!; echo $$; wait", patience=0.3)
    with Supervisor(print) as supervisor:
        supervisor.start(part)
        eventually(lambda: len(pids(part)) == 2)
        family = pids(part)
        began = time.monotonic()
    assert time.monotonic() - began >= 0.3, "it was asked first"
    eventually(lambda: not any(alive(pid) for pid in family))


def test_a_part_that_ends_by_itself_is_given_its_time(tmp_path: Path) -> None:
    part = shell(tmp_path, "p", "trap 'sleep 0.3; echo drained; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    with Supervisor(print) as supervisor:
        supervisor.start(part)
        eventually(lambda: part.tail() == "ready")
    # The shell may say of its own child that it was `Terminated`.
    assert part.tail().split()[-1] == "drained"


def test_parts_stop_in_order_even_those_that_were_started_again(tmp_path: Path) -> None:
    """The last started goes first. What was started again by the watching thread must not die when that one ends."""
    drain = "trap 'date +%s.%N; sleep {0}; date +%s.%N; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    first = shell(tmp_path, "first", f"echo $$; {drain.format(0)}")
    last = shell(tmp_path, "last", drain.format(0.4))
    with Supervisor(lambda _: None) as supervisor:
        supervisor.start(first)
        supervisor.start(last)
        eventually(lambda: first.tail().endswith("ready") and last.tail().endswith("ready"))
        os.kill(pids(first)[0], signal.SIGKILL)
        eventually(lambda: first.tail().count("ready") == 2)
    (_, ended), (asked, _) = times(last), times(first)
    assert asked >= ended


_SUPERVISED = """
import os, sys, time
from pathlib import Path
from scripts.supervisor import Part, Supervisor
supervisor = Supervisor(print)
for name in ("one", "two"):
    command = ["/bin/sh", "-c", "echo $$; exec sleep 60"]
    supervisor.start(Part(name, command, os.environ, Path(sys.argv[1]) / f"{name}.log"))
print("started", flush=True)
time.sleep(60)
"""


def test_parts_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _SUPERVISED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        logs = [tmp_path / "one.log", tmp_path / "two.log"]
        eventually(lambda: all(log.read_text().strip() for log in logs))
        children = [int(log.read_text()) for log in logs]
        assert all(alive(pid) for pid in children)
        process.kill()
    eventually(lambda: not any(alive(pid) for pid in children))
