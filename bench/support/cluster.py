"""Clusters of real processes."""

import json
import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.support.child import Child

TASK = Path(__file__).with_name("task.py")
START_SECONDS = 60


_claims: list[socket.socket] = []  # until this process ends: nobody else is given these ports


def free_port() -> int:
    """Return a port that nobody listens on; taken from below the range of outgoing connections."""
    while True:
        port = 10000 + int.from_bytes(os.urandom(2), "big") % 20000
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                claim.bind(f"\0bench.support.cluster.port.{port}")
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        _claims.append(claim)
        return port


class Task(Child):
    """A task's process; `ask()` and `stats()` say what it holds."""

    def __init__(
        self,
        job: str,
        index: int,
        protocol: str,
        cluster: dict[str, list[str]],
        environment: dict[str, str] | None = None,
        file_size_limit: int | None = None,
        program: Path = TASK,
    ) -> None:
        self.job, self.index = job, index
        super().__init__(
            f"/job:{job}/replica:0/task:{index}",
            [str(program), protocol, job, str(index), json.dumps(cluster)],
            environment,
            file_size_limit,
            patience=20,
        )

    def wait_ready(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.read(START_SECONDS)
        return answer

    def ask(self) -> dict[str, Any]:
        self.tell("report")
        answer: dict[str, Any] = self.read()
        return answer

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.ask()["stats"]
        return stats


class Cluster:
    """Tasks by (job, index), and how to reach them; those of `without` somebody else starts."""

    def __init__(
        self,
        jobs: dict[str, int],
        protocol: str,
        environment: dict[str, str] | None = None,
        without: Collection[tuple[str, int]] = (),
    ) -> None:
        self.protocol = protocol
        self.environment = environment
        self.spec = {
            job: [f"127.0.0.1:{free_port()}" for _ in range(count)] for job, count in jobs.items()
        }
        self.tasks = {
            (job, index): Task(job, index, protocol, self.spec, environment)
            for job, count in jobs.items()
            for index in range(count)
            if (job, index) not in without
        }
        try:
            for task in self.tasks.values():
                answer = task.wait_ready()
                assert answer == {"ready": True}, answer
        except BaseException:
            self.end()
            raise

    def __getitem__(self, key: tuple[str, int]) -> Task:
        return self.tasks[key]

    def target(self, job: str, index: int = 0) -> str:
        return "grpc://" + self.spec[job][index]

    def restart(self, job: str, index: int) -> Task:
        self.tasks[job, index].end()
        task = Task(job, index, self.protocol, self.spec, self.environment)
        self.tasks[job, index] = task
        assert task.wait_ready() == {"ready": True}
        return task

    def end(self) -> None:
        for task in self.tasks.values():
            task.end()


@contextmanager
def running(
    jobs: dict[str, int],
    protocol: str = "rdma",
    environment: dict[str, str] | None = None,
    without: Collection[tuple[str, int]] = (),
) -> Iterator[Cluster]:
    cluster = Cluster(jobs, protocol, environment, without)
    try:
        yield cluster
    finally:
        cluster.end()


def eventually(condition: Any, seconds: float = 5) -> bool:
    """Whether `condition()` becomes true within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())
