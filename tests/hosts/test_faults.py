"""What happens to steps when the other host's process, or the network in between, fails."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tensorflow as tf

from bench.support.cluster import Cluster
from tests.plugin.test_faults import Background, endless, exchange, received
from tests.support.deadlines import eventually, patient
from tests.support.graphs import Graph
from tests.support.namespaces import Hosts, UnavailableError, running_on

pytestmark = pytest.mark.timeout(120)
PEER_TIMEOUT = 2.0
ENDS_WITHIN = 1.25 * PEER_TIMEOUT + 5  # seconds, of which most are for a busy machine
WORKS_WITHIN = 40.0
MIB = 2**20


@pytest.fixture(scope="module")
def cluster(hosts: Hosts) -> Iterator[Cluster]:
    """The tests in this file leave it as they found it."""
    settings = {"RDMA_TRANSPORT_PEER_TIMEOUT": f"{PEER_TIMEOUT:.0f}s"}
    with running_on(hosts, {"a": 1, "b": 1}, environment=settings) as made:
        yield made


@pytest.fixture(autouse=True)
def link(hosts: Hosts) -> Iterator[None]:
    yield
    hosts.second.link(up=True)


def transport(cluster: Cluster) -> str:
    (peer,) = cluster["a", 0].stats()["peers"]
    name: str = peer["transport"]
    return name


def works(cluster: Cluster, graph: Graph) -> bool:
    """Whether a step succeeds, and by libfabric."""
    try:
        (total,) = graph.run(timeout_in_ms=10_000)
    except tf.errors.OpError:
        return False
    return abs(total) < 1e-3 and transport(cluster) == "libfabric"


def assert_works(cluster: Cluster, graph: Graph) -> None:
    assert eventually(lambda: works(cluster, graph), WORKS_WITHIN), cluster["a", 0].logged()[-5000:]


@contextmanager
def under_way(cluster: Cluster, elements: int = 1000) -> Iterator[Background]:
    """A step that passes a tensor to and fro until it fails."""
    with Graph(cluster, lambda: endless(elements=elements)) as graph:
        before = received(cluster["a", 0])
        step = Background(graph)
        assert eventually(lambda: received(cluster["a", 0]) > before + 20 * 4 * elements, 20)
        yield step


def assert_lost(step: Background, since: float) -> None:
    assert step.seconds_after(since, 60) < ENDS_WITHIN
    assert isinstance(step.error, tf.errors.UnavailableError), step.error
    assert "/job:b/replica:0/task:0" in str(step.error)


def assert_nothing_left(cluster: Cluster) -> None:
    task = cluster["a", 0]
    assert eventually(lambda: task.stats()["outstanding_tensors"] == 0, 10)
    assert eventually(lambda: task.stats()["arena"]["used_bytes"] < MIB, 10), task.stats()["arena"]


def test_a_stopped_peer_is_an_error_and_serves_again(cluster: Cluster) -> None:
    with Graph(cluster, exchange) as graph:
        assert_works(cluster, graph)
        with under_way(cluster) as step:
            cluster["b", 0].signal(signal.SIGSTOP)
            try:
                assert_lost(step, time.monotonic())
            finally:
                cluster["b", 0].signal(signal.SIGCONT)
        assert_works(cluster, graph)
    assert_nothing_left(cluster)


def test_a_link_that_is_down_for_a_moment_loses_nothing(cluster: Cluster, hosts: Hosts) -> None:
    with Graph(cluster, exchange) as graph, Graph(cluster, lambda: endless(elements=MIB)) as other:
        assert_works(cluster, graph)
        step = Background(other, timeout_in_ms=8000)
        for _ in range(3):
            time.sleep(0.5)
            hosts.second.link(up=False)
            time.sleep(0.3)
            hosts.second.link(up=True)
        before = received(cluster["a", 0])
        assert eventually(lambda: received(cluster["a", 0]) > before + 10 * MIB, 5)
        step.thread.join(patient(30))
        assert isinstance(step.error, tf.errors.DeadlineExceededError), step.error
        assert_works(cluster, graph)


def test_a_link_that_stays_down_is_an_error_and_works_again(cluster: Cluster, hosts: Hosts) -> None:
    with Graph(cluster, exchange) as graph:
        assert_works(cluster, graph)
        with under_way(cluster) as step:
            hosts.second.link(up=False)
            assert_lost(step, time.monotonic())
        hosts.second.link(up=True)
        assert_works(cluster, graph)
    assert_nothing_left(cluster)


def dropped(hosts: Hosts) -> int:
    """Packets that the rule of `lossy()` has dropped so far."""
    words = hosts.second.run("tc", "-s", "qdisc", "show", "dev", "eth0").split()
    return int(words[words.index("(dropped") + 1].rstrip(","))


@contextmanager
def lossy(hosts: Hosts) -> Iterator[None]:
    """One packet of twenty is lost; or those that do not fit into a short queue."""
    rule = ("tc", "qdisc", "replace", "dev", "eth0", "root")
    try:
        hosts.second.run(*rule, "netem", "loss", "5%")
    except UnavailableError:
        try:
            hosts.second.run(*rule, *["tbf", "rate", "200mbit", "burst", "64kb", "limit", "96kb"])
        except UnavailableError as error:
            pytest.skip(f"this kernel drops no packets: {error}")
    try:
        yield
    finally:
        hosts.second.run("tc", "qdisc", "delete", "dev", "eth0", "root")


def test_lost_packets_lose_nothing(cluster: Cluster, hosts: Hosts) -> None:
    def build() -> Any:
        return [exchange(elements=elements)[0] for elements in (10, 30_000, MIB)]

    with Graph(cluster, build) as graph, lossy(hosts):
        for _ in range(4):
            assert max(abs(total) for total in graph.run(timeout_in_ms=60_000)) < 1e-3
        assert transport(cluster) == "libfabric"
        assert dropped(hosts) > 0


def test_a_killed_peer_is_an_error_and_nothing_of_it_stays(cluster: Cluster) -> None:
    with Graph(cluster, exchange) as graph:
        assert_works(cluster, graph)
        descriptors = cluster["a", 0].ask()["fds"]
        with under_way(cluster, elements=16 * MIB) as step:
            cluster["b", 0].signal(signal.SIGKILL)
            assert_lost(step, time.monotonic())
    assert_nothing_left(cluster)
    cluster.restart("b", 0)
    with Graph(cluster, exchange) as graph:
        assert_works(cluster, graph)
    assert eventually(lambda: cluster["a", 0].ask()["fds"] <= descriptors + 8, 10)
