"""Three processes open thirty new databases, each at the same moment; prints the rows that each of them finds.

A program of its own: to fork, a process must have no threads, and starting three would spread them over seconds.
"""

import multiprocessing
import sys
from pathlib import Path

from storage.database import Database

forks = multiprocessing.get_context("fork")
gate, answers = forks.Barrier(3), forks.SimpleQueue()


def open_all(folder: Path) -> None:
    for number in range(30):
        gate.wait(60)
        db = Database(folder / str(number))
        answers.put(db.number("SELECT count(*) FROM journal_position"))
        db.close()


children = [forks.Process(target=open_all, args=(Path(sys.argv[1]),)) for _ in range(3)]
for child in children:
    child.start()
for child in children:
    child.join()
while not answers.empty():
    sys.stdout.write(f"{answers.get()}\n")
sys.exit(max(child.exitcode or 0 for child in children))
