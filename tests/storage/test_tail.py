"""How far the journal is whole, heard in another process."""

from __future__ import annotations

import subprocess
import sys

from storage.tail import Position, Tail

FAR = Position(7 + 0xAAAAAA, 0x5555555555)
"""Differs from the beginning in bytes of segment and offset."""

_MOVE = """
import sys
from storage.tail import Tail
tail, *far = Tail(int(sys.argv[1])), *map(int, sys.argv[2:])
print(tail.first, flush=True)
while True:
    tail.move(7, 0)
    tail.move(*far)
"""


def test_it_begins_with_the_segment_that_is_not_there_yet() -> None:
    tail = Tail.begin(1_800_000_000)
    assert (tail.first, tail.position) == (1_800_000_000, Position(1_800_000_000, 0))
    tail.move(1_800_000_003, 2**40 - 1)
    assert (tail.first, tail.position) == (1_800_000_000, Position(1_800_000_003, 2**40 - 1))
    tail.close()
    tail.close()


def test_another_process_never_hears_half_of_a_position() -> None:
    tail = Tail.begin(7)
    child = subprocess.Popen(
        [sys.executable, "-c", _MOVE, *map(str, (tail.file, *FAR))], stdout=subprocess.PIPE, pass_fds=(tail.file,)
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"7\n"
    heard = {tail.position for _ in range(200_000)}
    while len(heard) < 2:
        heard.add(tail.position)
    child.kill()
    child.wait()
    child.stdout.close()
    tail.close()
    assert heard == {Position(7, 0), FAR}
