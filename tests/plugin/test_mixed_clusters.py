"""Clusters of which only some tasks have rdma, and clusters that lose a task, as gRPC would do."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from examples.launch import Task
from tests.support.deadlines import eventually
from tests.support.scripts import (
    ENVIRONMENT,
    MIRRORED,
    PARAMETER_SERVER,
    STRATEGIES,
    ForkedCluster,
    outcome,
    stats_of,
    tail,
)

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("strategies")]

EPOCHS_WITHOUT_END = ("--epochs", "1000000")


def test_a_parameter_server_strategy_of_which_some_have_no_plugin() -> None:
    script = ("parameter_server_loop.py", PARAMETER_SERVER)
    without = ("chief:0", "worker:1")
    exceptions = tuple((name, "grpc") for name in without)
    result = outcome(*script, "rdma", exceptions=exceptions)
    assert result.losses == outcome(*script, "grpc").losses
    assert not set(result.stats) & set(without)
    paths = {
        (name, re.sub("/job:(.*)/replica:0/task:(.*)", r"\1:\2", peer["task"])): peer["transport"]
        for name, stats in result.stats.items()
        for peer in stats["peers"]
    }
    # Idle are those that nobody asked yet, and the chief when it has ended.
    assert {path for (_, peer), path in paths.items() if peer in without} <= {"grpc", "idle"}
    assert {path for (_, peer), path in paths.items() if peer not in without} <= {"shm", "idle"}
    assert {"grpc", "shm"} <= set(paths.values())


def test_mirrored_workers_of_which_one_has_no_plugin() -> None:
    script = ("mirrored_loop.py", MIRRORED)
    result = outcome(*script, "rdma", exceptions=(("worker:1", "grpc"),))
    assert result.losses == outcome(*script, "grpc").losses
    assert set(result.stats) == {"worker:0"}


@contextmanager
def training(script: str, jobs: dict[str, int]) -> Iterator[ForkedCluster]:
    """A cluster whose first task has trained for some epochs, and would do so forever."""
    path = STRATEGIES / script
    with ForkedCluster(path, jobs, "rdma", EPOCHS_WITHOUT_END, ENVIRONMENT) as cluster:
        wait_for_epochs(next(iter(cluster.tasks.values())), 3)
        yield cluster


def epochs(task: Task) -> int:
    found = [
        int(match[1]) for line in list(task.lines) if (match := re.match(r"Epoch (\d+)/", line))
    ]
    return max(found, default=0)


def wait_for_epochs(task: Task, more: int, seconds: float = 90) -> None:
    goal = epochs(task) + more
    reached = eventually(lambda: epochs(task) >= goal or task.code is not None, seconds)
    assert reached, f"{task.name} hangs\n" + tail(task)
    assert task.code is None, tail(task)


def ended_by_an_error(task: Task, seconds: float = 90) -> str:
    """The end of what it wrote; it must end."""
    assert eventually(lambda: task.code is not None, seconds), f"{task.name} hangs\n" + tail(task)
    task.end()
    assert task.code == 1, tail(task)
    return tail(task, 1000)


def test_a_mirrored_worker_that_dies_is_an_error_for_the_other() -> None:
    with training("mirrored_fit.py", dict(MIRRORED)) as cluster:
        cluster.tasks["worker:1"].process.send_signal(signal.SIGKILL)
        said = ended_by_an_error(cluster.tasks["worker:0"])
        assert "UnavailableError" in said
        assert "/job:worker/replica:0/task:1" in said


def test_a_coordinator_outlives_a_worker_but_not_its_parameter_server() -> None:
    jobs = {"chief": 1, "worker": 2, "ps": 1}
    with training("parameter_server_fit.py", jobs) as cluster:
        chief = cluster.tasks["chief:0"]
        cluster.tasks["worker:1"].process.send_signal(signal.SIGKILL)
        wait_for_epochs(chief, 20)
        again = cluster.start("worker", 1)
        wait_for_epochs(chief, 20)
        # The coordinator gives it work again, and its gradients go by the fabric.
        assert eventually(lambda: sent_by_fabric(again) > 0, 60), tail(again)
        cluster.tasks["ps:0"].process.send_signal(signal.SIGKILL)
        said = ended_by_an_error(chief)
        assert "UnavailableError" in said
        assert "/job:ps/replica:0/task:0" in said


def sent_by_fabric(task: Task) -> int:
    stats = stats_of(task)
    return stats["sent"]["dynamic"]["bytes"] + stats["sent"]["static"]["bytes"] if stats else 0
