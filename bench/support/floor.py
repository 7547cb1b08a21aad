"""The least time of a hop: two processes compute in turns on memory that they share.

They compute what a computed chain of `bench.chains` computes, `x + 1` and `x * 0.5`, on as many
bytes. They send nothing and allocate nothing: a process spins on a counter in shared memory, with
sched_yield, until it is its turn. NumPy computes on one thread. TensorFlow uses two, so it may
compute large tensors faster than this floor.
"""

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from .child import Child

TASK = Path(__file__).with_name("floor_task.py")


class Floor:
    """Two processes with tensors of `size` bytes, four at least; they end with `stack`."""

    def __init__(self, stack: ExitStack, size: int) -> None:
        size = max(size // 4, 1) * 4
        descriptor = os.memfd_create("rdma_transport_bench_floor")
        stack.callback(os.close, descriptor)
        os.ftruncate(descriptor, mmap.PAGESIZE + 2 * size)
        self._tensor = np.frombuffer(mmap.mmap(descriptor, 0), np.float32, size // 4, mmap.PAGESIZE)
        file = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._tasks = []
        for index in range(2):
            task = Child(f"floor {index}", [str(TASK), str(index), file, str(size)])
            stack.callback(task.end)
            self._tasks.append(task)
        self._finished = 0

    def seconds(self, steps: Sequence[int]) -> list[float]:
        """The seconds of each step, an even number of hops."""
        return [self._step(hops) for hops in steps]

    def _step(self, hops: int) -> float:
        self._finished += hops
        second, first = self._tasks
        second.say(self._finished)  # spins before the first one starts
        second.read()
        first.say(self._finished)
        first.read()
        second.read()
        return float(first.read())

    def wrong(self, hops: int) -> int:
        """Whether so many hops compute other bits than this process."""
        expected = np.linspace(-(2.0**30), 2.0**30, self._tensor.size, dtype=np.float32)
        self._tensor[:] = expected
        self.seconds([hops])
        for _ in range(hops // 2):
            expected = (expected + np.float32(1)) * np.float32(0.5)
        return int(not np.array_equal(self._tensor.view(np.int32), expected.view(np.int32)))
