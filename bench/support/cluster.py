"""Clusters of real processes."""

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from .child import Child
from .counters import Counts, routes_of, summed
from .hosts import HERE, Layout, Place, everything_here
from .ports import free_port

__all__ = ["Cluster", "NotStartedError", "Task", "eventually", "free_port"]

TASK = Path(__file__).with_name("task.py")
START_SECONDS = 240.0  # emulated hosts are slow
SECONDS_PER_TASK = 10.0  # of processor time to start a task, with room to spare


class NotStartedError(RuntimeError):
    """A task could not start; `error` is the name of TensorFlow's error."""

    def __init__(self, task: str, answer: dict[str, Any]) -> None:
        self.task = task
        self.error, self.message = answer["error"], answer["message"]
        super().__init__(f"{task}: {self.error}: {self.message}")


class Task(Child):
    """A task's process; `ask()` and `stats()` return what it holds."""

    def __init__(
        self,
        job: str,
        index: int,
        protocol: str,
        cluster: dict[str, list[str]],
        environment: dict[str, str] | None = None,
        file_size_limit: int | None = None,
        program: Path | Sequence[str] = TASK,
        place: Place = HERE,
    ) -> None:
        """`program` is the path of one, or the arguments that run a module."""
        self.job, self.index = job, index
        super().__init__(
            f"/job:{job}/replica:0/task:{index}",
            [
                *([str(program)] if isinstance(program, Path) else program),
                *(protocol, job, str(index), json.dumps(cluster)),
            ],
            environment,
            file_size_limit,
            timeout=60,
            place=place,
        )

    def wait_ready(self, seconds: float = START_SECONDS) -> dict[str, Any]:
        """Return its first answer: that it is ready, or an error."""
        answer: dict[str, Any] = self.read(seconds)
        return answer

    def ask(self) -> dict[str, Any]:
        """Return a new report of the task."""
        self.tell("report")
        answer: dict[str, Any] = self.read()
        return answer

    def stats(self) -> dict[str, Any]:
        """Return its `rdma_transport.stats()`."""
        stats: dict[str, Any] = self.ask()["stats"]
        return stats


class Members:
    """The processes of a cluster. As a context manager, it ends them."""

    def by_name(self) -> Mapping[str, Any]:
        """Return the processes, each with `stats()` and `end()`."""
        raise NotImplementedError

    def counted(self) -> Counts | None:
        """The counters of all tasks together; None over gRPC."""
        return summed(task.stats() for task in self.by_name().values())

    def routes(self) -> list[Counts]:
        """How each task reached each of its peers."""
        tasks = self.by_name().items()
        return [route for name, task in tasks for route in routes_of(name, task.stats())]

    def end(self) -> None:
        """End all tasks."""
        for task in self.by_name().values():
            task.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Cluster(Members):
    """Tasks by (job, index), and how to reach them; the caller starts those in `without`.

    `layout` chooses the host of each task. Those of a job in `programs` run another program than
    bench/support/task.py.
    """

    def __init__(
        self,
        jobs: dict[str, int],
        protocol: str = "rdma",
        environment: dict[str, str] | None = None,
        without: Collection[tuple[str, int]] = (),
        layout: Layout = everything_here,
        programs: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.protocol = protocol
        self.environment = environment
        self.layout = layout
        self.programs = programs or {}
        self.spec = {
            job: [layout(job, index).address() for index in range(count)]
            for job, count in jobs.items()
        }
        self.tasks = {
            (job, index): self._start(job, index)
            for job, count in jobs.items()
            for index in range(count)
            if (job, index) not in without
        }
        try:
            for task in self.tasks.values():
                self._ready(task)
        except BaseException:
            self.end()
            raise

    def __getitem__(self, key: tuple[str, int]) -> Task:
        return self.tasks[key]

    def target(self, job: str, index: int = 0) -> str:
        """Return the address of a task's server, as sessions take it."""
        return "grpc://" + self.spec[job][index]

    def restart(self, job: str, index: int) -> Task:
        """Kill a task, and start it again at the same address."""
        self.tasks[job, index].end()
        task = self.tasks[job, index] = self._start(job, index)
        self._ready(task)
        return task

    def _ready(self, task: Task) -> None:
        answer = task.wait_ready(start_seconds(sum(map(len, self.spec.values()))))
        if "error" in answer:
            raise NotStartedError(task.name, answer)

    def _start(self, job: str, index: int) -> Task:
        place, program = self.layout(job, index), self.programs.get(job, TASK)
        return Task(job, index, self.protocol, self.spec, self.environment, None, program, place)

    def by_name(self) -> dict[str, Task]:
        """Return all tasks by their names in TensorFlow."""
        return {f"/job:{job}/task:{index}": task for (job, index), task in self.tasks.items()}


def start_seconds(tasks: int) -> float:
    """How long the start of so many tasks may take on this host, with the load that it has."""
    share = max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)
    return START_SECONDS + SECONDS_PER_TASK * tasks * share


def eventually(condition: Any, seconds: float = 20) -> bool:
    """Return whether `condition()` becomes true within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())
