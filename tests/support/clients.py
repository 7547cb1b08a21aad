"""Front ends as tasks of a cluster; front_end.py is their program."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.support.cluster import Cluster, Task
from bench.support.counters import Counts, summed
from bench.support.hosts import Layout, everything_here
from tests.support.deadlines import patient

FRONT_END = Path(__file__).with_name("front_end.py")
TURN_SECONDS = 60
MIRRORED = "mirrored"


class Client:
    """A front end of one or more tasks, and the other tasks that it uses."""

    def __init__(self, cluster: Cluster, tasks: Sequence[Task]) -> None:
        self.cluster, self.tasks = cluster, tasks
        for task in tasks:
            assert task.wait_ready() == {"ready": True}

    def _ask(self, line: str) -> list[Any]:
        for task in self.tasks:
            task.tell(line)
        return [task.read(patient(TURN_SECONDS)) for task in self.tasks]

    def run(self, steps: int) -> Counts | None:
        """What all tasks counted so far, after some steps."""
        return summed(self.reports(steps))

    def reports(self, steps: int = 0) -> list[Counts]:
        """The same, for each task."""
        own = self._ask(str(steps))
        return [*own, *(task.stats() for task in self.cluster.tasks.values())]

    def weights(self) -> str:
        """A digest of the weights, which all tasks of the front end see."""
        (digest,) = set(self._ask("weights"))
        assert isinstance(digest, str)
        return digest


@contextmanager
def connected(
    front_end: str,
    protocol: str,
    environment: dict[str, str] | None = None,
    layout: Layout = everything_here,
) -> Iterator[Client]:
    own = [("worker", 0), ("worker", 1)] if front_end == MIRRORED else [("chief", 0)]
    jobs = {"worker": 2} if front_end == MIRRORED else {"ps": 1, "worker": 1, "chief": 1}
    given = (environment or {}) | {"FRONT_END": front_end}
    with ExitStack() as stack:
        cluster = Cluster(jobs, protocol, environment, without=own, layout=layout)
        stack.callback(cluster.end)
        tasks = []
        for job, index in own:
            place = layout(job, index)
            task = Task(job, index, protocol, cluster.spec, given, program=FRONT_END, place=place)
            stack.callback(task.end)
            tasks.append(task)
        yield Client(cluster, tasks)
