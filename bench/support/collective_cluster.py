"""Workers that run TensorFlow's collectives together."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bench.support.child import Child
from bench.support.cluster import free_port

TASK = Path(__file__).with_name("collective_task.py")
START_SECONDS = 90


class CollectiveCluster:
    """`size` processes of bench/support/collective_task.py."""

    def __init__(
        self,
        size: int,
        protocol: str,
        environment: dict[str, str] | None = None,
        other_protocol: Collection[int] = (),
    ) -> None:
        """The workers in `other_protocol` name "grpc", whatever the others do."""
        self.spec = [f"127.0.0.1:{free_port()}" for _ in range(size)]
        self.environment = {"TF_USE_LEGACY_KERAS": "1"} | (environment or {})
        self.workers = [
            self._start(index, "grpc" if index in other_protocol else protocol)
            for index in range(size)
        ]
        try:
            for worker in self.workers:
                answer = worker.read(START_SECONDS)
                assert answer == {"ready": True}, answer
        except BaseException:
            self.end()
            raise

    def _start(self, index: int, protocol: str) -> Child:
        config = {
            "cluster": {"worker": self.spec},
            "task": {"type": "worker", "index": index},
            "rpc_layer": protocol,
        }
        return Child(f"worker {index}", [str(TASK), json.dumps(config)], self.environment)

    def run(
        self, op: str, size: int, count: int = 1, dtype: str = "float32", seconds: float = 60
    ) -> list[dict[str, Any]]:
        """Repeat a collective of `size` bytes in all workers; their answers."""
        self.begin(op, size, count, dtype)
        return [worker.read(seconds) for worker in self.workers]

    def begin(self, op: str, size: int, count: int = 1, dtype: str = "float32") -> None:
        command = {"op": op, "bytes": size, "count": count, "dtype": dtype}
        for worker in self.workers:
            worker.say(command)

    def stats(self, index: int) -> dict[str, Any]:
        self.workers[index].say("stats")
        stats: dict[str, Any] = self.workers[index].read()
        return stats

    def end(self) -> None:
        for worker in self.workers:
            worker.end()

    def __enter__(self) -> "CollectiveCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
