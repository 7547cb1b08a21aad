"""A task with pretend accelerators: those of the library in PRETEND_ACCELERATOR_LIBRARY.

usage: task.py PROTOCOL JOB INDEX CLUSTER_JSON

Answers lines as bench/support/task.py does. Of two more: "set KEY=VALUE..." changes the library's
settings, and is answered with whether they are valid; "count" with its counters.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from bench.support import task
from tests.support.accelerators import LIBRARY, Library


class Commands:
    """Standard input without the lines that are for the library."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.lines = sys.stdin

    def __iter__(self) -> "Commands":
        return self

    def __next__(self) -> str:
        for line in self.lines:
            match line.split(maxsplit=1):
                case ["set", pairs]:
                    print(json.dumps(self.library.set(pairs)), flush=True)
                case ["count"]:
                    print(json.dumps(self.library.counters()), flush=True)
                case _:
                    return line
        raise StopIteration


if __name__ == "__main__":
    loaded = Library(os.environ[LIBRARY])
    loaded.load()
    sys.stdin = Commands(loaded)
    with contextlib.suppress(KeyboardInterrupt):
        task.main()
