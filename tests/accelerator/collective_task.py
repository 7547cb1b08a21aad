"""A worker that runs collectives of buffers on its pretend accelerator.

usage: collective_task.py TF_CONFIG

Answers lines as bench/support/collective_task.py does. One more, {"set": "KEY=VALUE..."}, changes
the library's settings, and is answered with whether they are valid.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from bench.support import collective_task
from tests.support.accelerators import LIBRARY, Library


def others(library: Library) -> Iterator[str]:
    """The lines that are not for the library."""
    for line in sys.__stdin__ or ():
        command = json.loads(line)
        if isinstance(command, dict) and "set" in command:
            print(json.dumps(library.set(command["set"])), flush=True)
        else:
            yield line


if __name__ == "__main__":
    loaded = Library(os.environ[LIBRARY])
    loaded.load()
    sys.stdin = others(loaded)  # type: ignore[assignment]
    collective_task.main("PRETEND:0")
