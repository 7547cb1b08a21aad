"""Clusters of real processes."""

import json
import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.support.python import start

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


class Task:
    """A task's process; `ask()` and `exit()` talk to it, signals go to `pid`."""

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
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = start(
            [str(program), protocol, job, str(index), json.dumps(cluster)],
            environment,
            self.log,
            file_size_limit,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def name(self) -> str:
        return f"/job:{self.job}/replica:0/task:{self.index}"

    def read(self, seconds: float = 20) -> dict[str, Any]:
        """Return the next answer; raise with the task's log if none comes."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"{self.name} does not answer\n{self.logged()}")
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"{self.name} ended\n{self.logged()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_ready(self) -> dict[str, Any]:
        return self.read(START_SECONDS)

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def ask(self) -> dict[str, Any]:
        self.tell("report")
        return self.read()

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.ask()["stats"]
        return stats

    def logged(self) -> str:
        self.log.flush()
        with open(f"/proc/self/fd/{self.log.fileno()}") as again:
            return again.read()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                pipe.close()


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
