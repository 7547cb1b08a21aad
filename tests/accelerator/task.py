"""A task with pretend accelerators: those of the library in PRETEND_ACCELERATOR_LIBRARY.

usage: task.py PROTOCOL JOB INDEX CLUSTER_JSON

Answers lines as bench/support/task.py does. Of two more: "set KEY=VALUE..." changes the library's
settings, and is answered with whether they are valid; "count" with its counters.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from bench.support import task
from tests.support.accelerators import LIBRARY, Library


def main() -> None:
    """Run the task."""
    library = Library(os.environ[LIBRARY])
    library.load()

    def answer(target: str, line: str) -> Any:
        match line.split(maxsplit=1):
            case ["set", pairs]:
                return library.set(pairs)
            case ["count"]:
                return library.counters()
        return task.report()

    with contextlib.suppress(KeyboardInterrupt):
        task.run(answer)


if __name__ == "__main__":
    main()
