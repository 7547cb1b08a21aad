"""Workers that run TensorFlow's collectives together."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from .child import Child
from .cluster import Members, NotStartedError
from .hosts import Layout, everything_here

TASK = Path(__file__).with_name("collective_task.py")
START_SECONDS = 90
OPS = ("all_reduce", "all_gather", "all_to_all", "broadcast")
FEW, OFTEN = 2, 12  # repetitions


class Worker(Child):
    """One of them."""

    def stats(self) -> dict[str, Any]:
        """Return its `rdma_transport.stats()`."""
        self.say("stats")
        stats: dict[str, Any] = self.read()
        return stats


class CollectiveCluster(Members):
    """`size` processes of bench/support/collective_task.py."""

    def __init__(
        self,
        size: int,
        protocol: str,
        environment: dict[str, str] | None = None,
        other_protocol: Collection[int] = (),
        layout: Layout = everything_here,
        program: Path = TASK,
        only_for: Mapping[int, dict[str, str]] | None = None,
    ) -> None:
        """The workers in `other_protocol` name "grpc", whatever the others do.

        `only_for` has what single workers have in their environment besides.
        """
        self.layout, self.program = layout, program
        self.only_for = only_for or {}
        self.spec = [layout("worker", index).address() for index in range(size)]
        self.environment = {"TF_USE_LEGACY_KERAS": "1"} | (environment or {})
        self.workers = [
            self._start(index, "grpc" if index in other_protocol else protocol)
            for index in range(size)
        ]
        try:
            for worker in self.workers:
                answer = worker.read(START_SECONDS)
                if "error" in answer:
                    raise NotStartedError(worker.name, answer)
        except BaseException:
            self.end()
            raise

    def _start(self, index: int, protocol: str) -> Worker:
        config = {
            "cluster": {"worker": self.spec},
            "task": {"type": "worker", "index": index},
            "rpc_layer": protocol,
        }
        return Worker(
            f"worker {index}",
            [str(self.program), json.dumps(config)],
            self.environment | self.only_for.get(index, {}),
            place=self.layout("worker", index),
        )

    def run(
        self,
        op: str,
        size: int,
        count: int = 1,
        dtype: str = "float32",
        seconds: float = 60,
        **more: Any,
    ) -> list[dict[str, Any]]:
        """Repeat a collective of `size` bytes in all workers; their answers."""
        self.begin(op, size, count, dtype, **more)
        return [worker.read(seconds) for worker in self.workers]

    def warm_up(self, op: str, size: int) -> None:
        """Trace and connect what time() runs."""
        for count in (FEW, OFTEN):
            self._seconds(op, size, count)

    def time(self, op: str, size: int) -> tuple[float, list[str]]:
        """Return the microseconds of a collective, and the digests of all results.

        It is the difference between functions that repeat it often and a few times, each the time
        of the slowest worker. Raise RuntimeError if the collective fails.
        """
        short, _ = self._seconds(op, size, FEW)
        long, digests = self._seconds(op, size, OFTEN)
        return 1e6 * (long - short) / (OFTEN - FEW), digests

    def _seconds(self, op: str, size: int, count: int) -> tuple[float, list[str]]:
        answers = self.run(op, size, count)
        for answer in answers:
            if "error" in answer:
                raise RuntimeError(f"{op} of {size} bytes: {answer['message']}")
        slowest = max(answer["seconds"] for answer in answers)
        return slowest, [answer["digest"] for answer in answers]

    def begin(
        self, op: str, size: int, count: int = 1, dtype: str = "float32", **more: Any
    ) -> None:
        """Start an operation of `size` bytes on all workers, without waiting for it.

        `more` is what else a command of the task may have.
        """
        command = {"op": op, "bytes": size, "count": count, "dtype": dtype} | more
        for worker in self.workers:
            worker.say(command)

    def by_name(self) -> dict[str, Worker]:
        """Return all workers by their names in TensorFlow."""
        return {f"/job:worker/task:{index}": worker for index, worker in enumerate(self.workers)}
