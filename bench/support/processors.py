"""Gives each of two processes of this host a processor of its own.

Two processes that poll may otherwise share one for the whole measurement, and then wait for each
other's turns.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager


def of_each() -> tuple[int, int] | None:
    """Return a processor for each of two processes; None if there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[-1]) if len(allowed) > 1 else None


@contextmanager
def only(processor: int | None) -> Iterator[None]:
    """Keep this thread on a processor; None means any."""
    before = os.sched_getaffinity(0)
    if processor is not None:
        os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def words_for(processor: int) -> list[str]:
    """Return the beginning of a command that keeps the rest of it on a processor."""
    return ["taskset", "--cpu-list", str(processor)] if shutil.which("taskset") else []
