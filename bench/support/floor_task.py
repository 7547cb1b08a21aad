"""One of two processes that compute in turns on shared memory, and nothing else.

usage: floor_task.py INDEX FILE BYTES

FILE holds a page with the number of finished hops, and two tensors of BYTES. Task 1 computes the
second tensor from the first one, task 0 the first one from the second. Each line of standard input
is the number of finished hops at which both tasks stop. Each task answers with a line when it is
about to start, and with one that says how many seconds it took.
"""

import ctypes
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np


def take_turns(index: int, finished: memoryview, last: int, compute: Callable[[], object]) -> None:
    """Run `compute` for every second hop."""
    while (done := finished[0]) < last:
        if done % 2 == index:
            os.sched_yield()
        else:
            compute()
            finished[0] = done + 1


def main() -> None:
    """Compute in turns with the other process."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the parent
    index, path, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    finished = memoryview(memory)[:8].cast("q")
    first, second = (
        np.frombuffer(memory, np.float32, size // 4, mmap.PAGESIZE + number * size)
        for number in range(2)
    )
    compute: Callable[[], object] = (
        (lambda: np.add(first, np.float32(1), out=second))
        if index
        else (lambda: np.multiply(second, np.float32(0.5), out=first))
    )
    for line in sys.stdin:
        print(json.dumps("starting"), flush=True)
        start = time.perf_counter()
        take_turns(index, finished, int(line), compute)
        print(json.dumps(time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main()
