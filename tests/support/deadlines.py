"""How long a test waits for what takes so long only if it hangs.

Deadlines are written for a usual machine. One that imports TensorFlow more slowly is given more
time, in proportion.
"""

import os
from collections.abc import Callable

from bench.support import cluster

USUAL_IMPORT_SECONDS = 10.0  # three at once on two processors
MOST_PATIENCE = 10.0
PATIENCE = "TESTS_PATIENCE"  # also for the processes that the tests start


def measured(import_seconds: float) -> None:
    """Set what follows from the time in which TensorFlow was imported here, if it is not set."""
    slower = import_seconds / USUAL_IMPORT_SECONDS
    os.environ.setdefault(PATIENCE, str(min(max(slower, 1.0), MOST_PATIENCE)))


def patient(seconds: float) -> float:
    """As many seconds of this machine."""
    return seconds * float(os.environ.get(PATIENCE, 1))


def eventually(condition: Callable[[], object], seconds: float = 20) -> bool:
    """Whether it becomes true within so many."""
    return cluster.eventually(condition, patient(seconds))
