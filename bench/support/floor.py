"""The least time of a hop: two processes compute in turns on the same bytes, and do nothing else.

They compute what a computed chain of `bench.chains` computes, `x + 1` and `x * 0.5`, on as many
bytes. On one host they share memory. They send nothing and allocate nothing: a process spins on a
counter in shared memory, with sched_yield, until it is its turn. Two hosts send each other the
tensor over one TCP connection, through blocking sockets. NumPy computes on one thread. TensorFlow
uses two, so it may compute large tensors faster than this floor.
"""

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import numpy as np

from .child import Child
from .hosts import Place

TASK = Path(__file__).with_name("floor_task.py")
TCP_TASK = Path(__file__).with_name("tcp_floor_task.py")


def floor_between(stack: ExitStack, size: int, first: Place, second: Place) -> "Floor":
    """Two processes with tensors of `size` bytes, four at least; they end with `stack`."""
    size = max(size // 4, 1) * 4
    if first is second:
        return SharedFloor(stack, size)
    return TcpFloor(stack, size, first, second)


class Floor(Protocol):
    """Two processes that compute in turns."""

    def seconds(self, steps: Sequence[int]) -> list[float]:
        """The seconds of each step, an even number of hops."""
        ...

    def wrong(self, hops: int) -> int:
        """Whether so many hops compute other bits than one process."""
        ...


class TcpFloor:
    """A floor between two hosts."""

    def __init__(self, stack: ExitStack, size: int, first: Place, second: Place) -> None:
        host, _, port = second.address().rpartition(":")
        where = [host.strip("[]"), port, str(size)]
        for index, place in ((1, second), (0, first)):
            task = Child(f"floor {index}", [str(TCP_TASK), str(index), *where], place=place)
            stack.callback(task.end)
            if index == 1:
                task.read()  # it listens
        self._first = task

    def seconds(self, steps: Sequence[int]) -> list[float]:
        """The seconds of each step, an even number of hops."""
        return [float(self._ask(hops, check=False)) for hops in steps]

    def wrong(self, hops: int) -> int:
        """Whether so many hops compute other bits than one process."""
        return int(self._ask(hops, check=True))

    def _ask(self, hops: int, check: bool) -> float:
        self._first.say([hops, check])
        answer: float = self._first.read()
        return answer


class SharedFloor:
    """A floor on one host, for tensors of `size` bytes."""

    def __init__(self, stack: ExitStack, size: int) -> None:
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
