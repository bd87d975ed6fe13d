from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer.errors import AlreadyRunning, UpdateFailed
from trainer.worker import JOBS_OF_A_CHILD, UpdateWorker, await_orphan

FAKE = [sys.executable, str(Path(__file__).parent / "fake_update.py")]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[UpdateWorker]:
    worker = UpdateWorker(tmp_path / "logs" / "update.log", silence_s=20, command=FAKE)
    yield worker
    worker.close()


@pytest.fixture
def job(tmp_path: Path) -> Any:
    def write(*steps: dict[str, Any]) -> Path:
        folder = tmp_path / f"job-{len(list(tmp_path.glob('job-*')))}"
        folder.mkdir()
        (folder / "script.json").write_text(json.dumps(steps))
        return folder

    return write


def alive(pid: float) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def test_the_process_starts_with_the_first_job_and_stays(worker: UpdateWorker, job: Any) -> None:
    assert worker.pid is None
    first, second = worker.run(job()), worker.run(job())
    assert first["pid"] == second["pid"] == worker.pid


def test_progress_is_passed_on_in_order(worker: UpdateWorker, job: Any) -> None:
    seen: list[tuple[str, int, int]] = []
    steps = [{"emit": {"event": "progress", "run": "r", "stage": "update", "done": done, "of": 2}} for done in (1, 2)]
    worker.run(job(*steps), lambda *news: seen.append(news))
    assert seen == [("update", 1, 2), ("update", 2, 2)]


@pytest.mark.parametrize("blames_batch", [True, False])
def test_a_failed_job_has_a_reason_and_its_process_is_replaced_unless_it_only_refused(
    worker: UpdateWorker, job: Any, blames_batch: bool
) -> None:
    pid = worker.run(job())["pid"]
    failed = {"event": "failed", "run": "r", "reason": "the reason", "blames_batch": blames_batch}
    with pytest.raises(UpdateFailed) as caught:
        worker.run(job({"emit": failed}))
    assert (caught.value.reason, caught.value.blames_batch) == ("the reason", blames_batch)
    assert alive(pid) is not blames_batch
    assert (worker.run(job())["pid"] == pid) is not blames_batch


def test_a_process_is_replaced_after_so_many_jobs(worker: UpdateWorker, job: Any) -> None:
    pids = [worker.run(job())["pid"] for _ in range(JOBS_OF_A_CHILD + 1)]
    assert len(set(pids[:-1])) == 1
    assert pids[-1] != pids[0]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"signal": signal.SIGKILL}, r"killed by SIGKILL \(out of memory\?\)"),
        ({"signal": signal.SIGSEGV}, r"killed by SIGSEGV; its log is"),
        ({"exit": 3}, "ended with exit code 3"),
        ({"exit": 0}, "ended with exit code 0"),
    ],
)
def test_a_dead_process_costs_one_job(worker: UpdateWorker, job: Any, step: dict[str, int], text: str) -> None:
    with pytest.raises(UpdateFailed, match=text):
        worker.run(job(step))
    assert worker.pid is None
    assert worker.run(job())["pid"] == worker.pid


def test_a_process_that_died_between_jobs_is_replaced(worker: UpdateWorker, job: Any) -> None:
    pid = int(worker.run(job())["pid"])
    os.kill(pid, signal.SIGKILL)
    while worker.pid is not None:
        time.sleep(0.01)
    assert worker.run(job())["pid"] != pid


def test_silence_ends_the_job_and_the_process(tmp_path: Path, job: Any) -> None:
    worker = UpdateWorker(tmp_path / "log", silence_s=0.5, command=FAKE)
    with pytest.raises(UpdateFailed, match=r"said nothing for 0\.5 s and was killed"):
        worker.run(job({"sleep": 60}))
    assert worker.pid is None
    worker.close()


def test_a_callback_that_raises_leaves_no_answer_for_the_next_job(worker: UpdateWorker, job: Any) -> None:
    progress = {"emit": {"event": "progress", "run": "r", "stage": "update", "done": 1, "of": 2}}

    def stop(stage: str, done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker.run(job(progress), stop)
    longer = job().rename(job().parent / "job-with-a-longer-name")
    assert worker.run(longer)["folder"] == len("job-with-a-longer-name")


def test_close_ends_an_idle_process_and_is_idempotent(worker: UpdateWorker, job: Any) -> None:
    pid = worker.run(job())["pid"]
    worker.close()
    worker.close()
    assert not alive(pid)
    assert worker.pid is None
    with pytest.raises(UpdateFailed, match="is closed"):
        worker.run(job())


def test_close_ends_a_job_under_way(worker: UpdateWorker, job: Any) -> None:
    reasons: list[str] = []
    started = threading.Event()

    def begun(stage: str, done: int, of: int) -> None:
        started.set()

    def work() -> None:
        progress = {"emit": {"event": "progress", "run": "r", "stage": "update", "done": 1, "of": 2}}
        try:
            worker.run(job(progress, {"sleep": 60}), begun)
        except UpdateFailed as error:
            reasons.append(error.reason)

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(60)
    worker.close()
    thread.join(60)
    assert reasons == ["the update worker was closed during the job"]


def test_a_child_that_outlives_its_trainer_is_waited_for(tmp_path: Path, job: Any) -> None:
    lock = tmp_path / "lock"
    await_orphan(lock, 0)
    worker = UpdateWorker(tmp_path / "log", command=FAKE, lock=lock)
    worker.run(job())
    with pytest.raises(AlreadyRunning, match="an update worker that an earlier trainer left"):
        await_orphan(lock, 0)
    worker.close()
    await_orphan(lock, 0)
    worker = UpdateWorker(tmp_path / "log", command=FAKE, lock=lock)
    worker.run(job())  # and the next child takes it again
    worker.close()


def test_what_the_child_says_on_stderr_is_in_the_log(worker: UpdateWorker, job: Any, tmp_path: Path) -> None:
    worker.run(job({"print": "loading weights"}))
    worker.close()
    assert (tmp_path / "logs" / "update.log").read_text() == "loading weights\n"
