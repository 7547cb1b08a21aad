"""Processes that keep the processors busy beside a measurement or a test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Run this many busy processes until the context ends."""
    spinning = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()
