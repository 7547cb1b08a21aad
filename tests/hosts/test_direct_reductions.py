"""TensorFlow's reductions between two hosts: workers of a host combine first, and the bits do not
depend on the worker or the run."""

import base64
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from bench.support.collective_cluster import CollectiveCluster
from tests.support.members import by_host, in_turn
from tests.support.namespaces import Hosts

pytestmark = pytest.mark.timeout(120)

ENVIRONMENT = {"RDMA_TRANSPORT_FALLBACK": "forbid", "RDMA_TRANSPORT_PEER_TIMEOUT": "2s"}
OURS = "RdmaDirectReduce"
ABOVE = 128 << 10  # bytes; larger tensors are combined on each host first
ENDS_WITHIN = 9.0  # seconds: less than PEER_TIMEOUT if it is not set


@contextmanager
def workers(hosts: Hosts, size: int, protocol: str = "rdma") -> Iterator[CollectiveCluster]:
    """Workers 0, 2 and so on are on the first host, the others on the second."""
    with CollectiveCluster(size, protocol, ENVIRONMENT, layout=hosts.place) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=[3, 4])
def several(request: pytest.FixtureRequest, hosts: Hosts) -> Iterator[CollectiveCluster]:
    with workers(hosts, request.param) as cluster:
        yield cluster


def arrays(answers: list[dict[str, Any]], name: str) -> list[Any]:
    assert not any("error" in answer for answer in answers), answers
    return [np.frombuffer(base64.b64decode(answer[name]), np.float32) for answer in answers]


def test_two_get_the_same_bits_as_over_grpc(hosts: Hosts) -> None:
    digests = []
    for protocol in ("rdma", "grpc"):
        with workers(hosts, 2, protocol) as cluster:
            sizes = (12, 40_004, 5 << 20)
            answers = [cluster.run("all_reduce", size, count=3) for size in sizes]
            digests.append([answer["digest"] for each in answers for answer in each])
            if protocol == "rdma":
                stats = cluster.workers[0].stats()
                assert stats["collectives"] == {OURS: 9}
                assert stats["sent"]["grpc"]["tensors"] == 0
    assert digests[0] == digests[1]


def test_the_workers_of_a_host_combine_first(several: CollectiveCluster) -> None:
    for elements in (3, 1001, 25_000, 300_000, 1_500_003):
        runs = [several.run("all_reduce", 4 * elements, values=True) for _ in range(2)]
        inputs, outputs = arrays(runs[0], "input"), arrays(runs[0], "output")
        expected = by_host(inputs, "sum", in_turn(len(inputs)) if inputs[0].nbytes >= ABOVE else ())
        if inputs[0].nbytes < ABOVE:
            expected = np.add.reduce(inputs)
        for output in outputs + arrays(runs[1], "output"):
            assert output.tobytes() == expected.tobytes(), elements


def test_a_mean(several: CollectiveCluster) -> None:
    answers = several.run("all_reduce", 1 << 20, values=True, final="Div")
    size = len(several.workers)
    expected = by_host(arrays(answers, "input"), "sum", in_turn(size)) / np.float32(size)
    for output in arrays(answers, "output"):
        assert output.tobytes() == expected.tobytes()


def test_reduce_scatter(several: CollectiveCluster) -> None:
    size = len(several.workers)
    for elements in (size, size * 1001, size * 100_000):
        answers = several.run("reduce_scatter", 4 * elements, values=True)
        inputs = arrays(answers, "input")
        expected = by_host(inputs, "sum", in_turn(len(inputs)))
        if inputs[0].nbytes < ABOVE:
            expected = np.add.reduce(inputs)
        for rank, output in enumerate(arrays(answers, "output")):
            part = expected[rank * elements // size : (rank + 1) * elements // size]
            assert output.tobytes() == size * part.tobytes(), elements


def between_hosts(cluster: CollectiveCluster) -> int:
    """The bytes that workers have sent to those of the other host."""
    return sum(
        sent["bytes"]
        for worker in cluster.workers
        for peer in worker.stats()["peers"]
        if peer["transport"] == "libfabric"
        for sent in peer["sent"].values()
    )


def test_each_byte_crosses_the_network_once_in_each_direction(several: CollectiveCluster) -> None:
    size, count = 3 << 20, 4
    several.run("all_reduce", size, count)
    before = between_hosts(several)
    several.run("all_reduce", size, count)
    assert between_hosts(several) - before == pytest.approx(2 * size * count, rel=0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_loss_of_one_in_the_middle_ends_all(hosts: Hosts, number: signal.Signals) -> None:
    with workers(hosts, 4) as cluster:
        cluster.run("all_reduce", 3 << 20, count=400)  # it traces
        cluster.begin("all_reduce", 3 << 20, count=400)
        time.sleep(0.2)  # all of them take seconds
        cluster.workers[3].signal(number)
        begun = time.monotonic()
        answers = [worker.read() for worker in cluster.workers[:3]]
        assert [answer.get("error") for answer in answers] == ["UnavailableError"] * 3, answers
        assert any("task:3" in answer["message"] for answer in answers)
        assert time.monotonic() - begun < ENDS_WITHIN
        if number == signal.SIGSTOP:
            os.kill(cluster.workers[3].pid, signal.SIGCONT)


def test_one_can_be_cancelled(hosts: Hosts) -> None:
    """It ends at once. The others wait, as over gRPC, until the missing one aborts."""
    size = 3 << 20
    with workers(hosts, 4) as cluster:
        before = cluster.run("all_reduce", size)
        command = {"op": "all_reduce", "bytes": size, "count": 1}
        cluster.workers[0].say(command | {"cancel_after": 0.5})  # worker 3 never begins
        for worker in cluster.workers[1:3]:
            worker.say(command)
        assert cluster.workers[0].read()["error"] == "CancelledError"
        cluster.workers[3].say("abort")
        assert cluster.workers[3].read() == {"done": True}
        for worker in cluster.workers[1:3]:
            assert "aborted on purpose" in worker.read()["message"]
        for worker in cluster.workers:
            worker.say("anew")
        assert [worker.read() for worker in cluster.workers] == [{"done": True}] * 4
        after = cluster.run("all_reduce", size)
        assert [each["digest"] for each in after] == [each["digest"] for each in before]
