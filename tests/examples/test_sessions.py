"""The examples of sessions and remote eager code: over rdma the same outcome as over gRPC."""

import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from examples.launch import Task
from rdma_transport.live import LiveServer
from tests.support.deadlines import eventually
from tests.support.scripts import ForkedCluster

pytestmark = pytest.mark.timeout(120)
SESSIONS = Path(__file__).parents[2] / "examples" / "sessions"
PS_AND_WORKERS = {"ps": 1, "worker": 2}
FORBID = {"RDMA_TRANSPORT_FALLBACK": "forbid"}


def stats(task: Task) -> dict[str, Any]:
    return LiveServer(task.process.pid, os.geteuid()).stats()


def last_line(task: Task) -> str:
    """What the script printed last, among what TensorFlow logs."""
    # What other threads write may be on the same line.
    return re.findall(r"last loss \S+|losses(?: -?[0-9][0-9.e+-]*)+", "\n".join(task.lines))[-1]


def outcomes(
    name: str, jobs: dict[str, int], until: list[str], environment: dict[str, str] | None = None
) -> dict[str, list[str]]:
    """The last lines of the tasks `until` by protocol; over rdma all but strings went by rdma."""
    script = SESSIONS / f"{name}.py"
    with (
        ForkedCluster(script, jobs, "grpc", environment=environment) as grpc,
        ForkedCluster(script, jobs, "rdma", environment=environment) as rdma,
    ):
        for cluster in (grpc, rdma):
            code = cluster.wait(until)
            assert code == 0, [(task.name, list(task.lines)[-40:]) for task in cluster.failed()]
            for task in cluster.tasks.values():
                text = "\n".join(task.lines)
                assert "Traceback" not in text, text
                assert " is lost" not in text, text
        for task in rdma.tasks.values():
            if task.code is None:
                assert_by_fabric(stats(task))
        assert any(task.code is None for task in rdma.tasks.values())
    return {
        cluster.protocol: [last_line(cluster.tasks[name]) for name in until]
        for cluster in (grpc, rdma)
    }


def assert_by_fabric(counts: dict[str, Any]) -> None:
    assert counts["sent"]["static"]["tensors"] >= 5
    assert counts["received"]["static"]["tensors"] >= 5
    assert set(counts["fallback_reasons"]) <= {"a string tensor"}


@pytest.mark.parametrize(
    ("name", "jobs", "until", "environment"),
    [
        ("in_graph", PS_AND_WORKERS, ["worker:0"], FORBID),
        ("synchronous", PS_AND_WORKERS, ["worker:0", "worker:1"], FORBID),
        ("model_parallel", {"worker": 3}, ["worker:0"], FORBID),
        ("remote_eager", {"chief": 1, "worker": 2}, ["chief:0"], None),  # strings too
    ],
)
def test_the_same_bits(
    name: str, jobs: dict[str, int], until: list[str], environment: dict[str, str] | None
) -> None:
    lines = outcomes(name, jobs, until, environment)
    assert lines["rdma"] == lines["grpc"]
    for line in lines["rdma"]:
        losses = [float(word) for word in line.split()[1:]]
        assert losses[7] < losses[0], "it learns"


def test_workers_that_wait_for_nobody_converge() -> None:
    lines = outcomes("downpour", PS_AND_WORKERS, ["worker:0", "worker:1"], FORBID)
    for line in lines["grpc"] + lines["rdma"]:
        assert float(line.split()[-1]) < 0.01


def steps(task: Task) -> list[int]:
    """The steps that a task reported."""
    return [int(line.split()[1][:-1]) for line in list(task.lines) if line.startswith("step ")]


def reach(task: Task, step: int) -> None:
    assert eventually(lambda: task.code is not None or max(steps(task), default=0) >= step, 40)
    assert task.code is None, list(task.lines)[-40:]


def interrupted(protocol: str, directory: Path) -> str:
    """What comes of training when first the worker and then the parameter server is killed."""
    script, jobs = SESSIONS / "recovery.py", {"ps": 1, "worker": 1}
    with ForkedCluster(script, jobs, protocol, [str(directory), "300"]) as cluster:
        worker = cluster.tasks["worker:0"]
        reach(worker, 25)
        worker.end()
        last = steps(worker)[-1]

        worker = cluster.start("worker", 0)
        reach(worker, last + 25)
        cluster.tasks["ps:0"].end()
        assert worker.code is None
        server = cluster.start("ps", 0)
        assert cluster.wait(["worker"]) == 0, list(worker.lines)[-40:]
        if protocol == "rdma":
            assert_by_fabric(stats(server))

    made = steps(worker)
    # The step after the last one that was printed may have been saved, too.
    assert 20 < made[0] <= last + 2, "a new worker goes on from the checkpoint"
    # Not back at all where the server died just after a checkpoint.
    back = [after for before, after in pairwise(made) if after != before + 1]
    assert len(back) <= 1
    assert {step % 20 for step in (made[0], *back)} == {1}
    assert made[-1] == 300
    return last_line(worker)


def test_training_outlives_its_tasks(tmp_path: Path) -> None:
    lines = {protocol: interrupted(protocol, tmp_path / protocol) for protocol in ("grpc", "rdma")}
    assert lines["rdma"] == lines["grpc"]
