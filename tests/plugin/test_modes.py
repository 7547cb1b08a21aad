"""Every byte is counted under its mode, and every copy is counted."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import rdma_transport
from bench.support.cluster import Cluster, Task
from tests.support.deadlines import eventually
from tests.support.graphs import A, B, Graph, v1

pytestmark = pytest.mark.timeout(120)
MIB = 2**20


def measured(cluster: Cluster, build: Callable[[], Any], steps: int = 1) -> dict[str, int]:
    """What task a sent, and copied, in `steps` steps after a warm-up."""

    def flat() -> dict[str, int]:
        stats = cluster["a", 0].stats()
        counts = {key: stats[key] for key in ("copied_bytes", "staged_tensors", "registrations")}
        for mode, count in stats["sent"].items():
            counts |= {f"{mode}_tensors": count["tensors"], f"{mode}_bytes": count["bytes"]}
        return counts

    with Graph(cluster, build) as graph:
        graph.run()
        graph.run()
        before = flat()
        for _ in range(steps):
            graph.run()
        after = flat()
    return {key: after[key] - before[key] for key in after}


def consume(tensor: Any) -> Any:
    with tf.device(B):
        return tf.reduce_sum(tf.cast(tensor, tf.float32))


def test_a_reference_variable_is_copied_exactly_once_a_send(rdma: Cluster) -> None:
    def build() -> Any:
        with tf.device(A):
            weights = v1.get_variable("w", [512, 512], use_resource=False)
        return consume(weights)

    counts = measured(rdma, build, steps=3)
    assert counts["static_bytes"] == 3 * MIB
    assert counts["copied_bytes"] == 3 * MIB
    assert counts["staged_tensors"] == 3


def string_graph() -> Any:
    with tf.device(A):
        text = tf.strings.as_string(tf.random.uniform([10]))
    with tf.device(B):
        return tf.strings.length(text)


def test_strings_go_by_grpc_and_say_so(rdma: Cluster) -> None:
    assert measured(rdma, string_graph, steps=2)["grpc_tensors"] == 2
    assert rdma["a", 0].stats()["fallback_reasons"]["a string tensor"] >= 2


def test_what_was_lent_comes_back(rdma: Cluster) -> None:
    def build() -> Any:
        with tf.device(A):
            parts = [tf.random.uniform([20000], seed=i) for i in range(20)]
        return [consume(part) for part in parts]

    def outstanding() -> int:
        count: int = rdma["a", 0].stats()["outstanding_tensors"]
        return count

    before = outstanding()  # a queue of another test may hold tensors for good
    measured(rdma, build, steps=10)
    assert eventually(lambda: outstanding() == before)
    assert rdma["b", 0].stats()["unclaimed_tensors"] == 0


def test_a_server_says_what_it_is(rdma: Cluster) -> None:
    logged = rdma["a", 0].logged().splitlines()
    (line,) = [line for line in logged if "rdma: server" in line]
    versions = f"rdma_transport {rdma_transport.__version__}, TensorFlow {tf.__version__}; "
    assert f"rdma: server /job:a/replica:0/task:0: {versions}" in line
    assert "shm" in line
    assert line.endswith("; fallback allow")


def test_peers_name_their_transport(rdma: Cluster) -> None:
    measured(rdma, string_graph)
    peers = {peer["task"]: peer for peer in rdma["a", 0].stats()["peers"]}
    assert peers["/job:b/replica:0/task:0"]["transport"] == "shm"
    logged = rdma["a", 0].logged()
    assert logged.count("rdma: peer /job:b/replica:0/task:0 transport=shm") == 1


def test_the_level_debug_logs_more() -> None:
    with Cluster({"a": 1, "b": 1}, environment={"RDMA_TRANSPORT_LOG_LEVEL": "debug"}) as cluster:
        measured(cluster, string_graph)
        assert "rdma: pull notice: a string tensor" in cluster["a", 0].logged()


def test_no_name_is_left_in_shared_memory(rdma: Cluster) -> None:
    assert rdma["a", 0].ask()["shm_names"] == []


def test_forbidden_fallback_is_an_error_and_nothing_goes_by_grpc() -> None:
    environment = {"RDMA_TRANSPORT_FALLBACK": "forbid"}
    with Cluster({"a": 1, "b": 1}, environment=environment) as cluster:

        def numbers() -> Any:
            with tf.device(A):
                return consume(tf.random.uniform([30000]))

        with Graph(cluster, numbers) as graph:
            graph.run()
        with (
            Graph(cluster, string_graph) as graph,
            pytest.raises(tf.errors.OpError, match="RDMA_TRANSPORT_FALLBACK=forbid"),
        ):
            graph.run()
        for task in cluster.tasks.values():
            assert task.stats()["sent"]["grpc"] == {"tensors": 0, "bytes": 0}


@pytest.mark.parametrize("fallback", ["allow", "forbid"])
def test_a_peer_with_stock_tensorflow(fallback: str) -> None:
    environment = {"RDMA_TRANSPORT_FALLBACK": fallback}
    with Cluster({"a": 1, "b": 1}, environment=environment, without=[("b", 0)]) as cluster:
        stock = Task("b", 0, "grpc", cluster.spec)
        cluster.tasks["b", 0] = stock
        stock.wait_ready()

        def both_ways() -> Any:
            with tf.device(A):
                data = tf.random.uniform([30000], seed=1)
            with tf.device(B):
                there = tf.negative(data)
            with tf.device(A):
                return [tf.identity(there), data]

        with Graph(cluster, both_ways) as graph:
            if fallback == "forbid":
                with pytest.raises(tf.errors.OpError, match="forbid"):
                    graph.run()
                return
            for _ in range(3):
                there, data = graph.run()
                assert np.array_equal(there, -data)
        reason = "the peer does not run the rdma_transport plugin"
        line = f"rdma: peer /job:b/replica:0/task:0 transport=grpc: {reason}"
        assert cluster["a", 0].logged().count(line) == 1
        assert cluster["a", 0].stats()["sent"]["grpc"]["tensors"] == 3
        assert cluster["a", 0].stats()["received"]["grpc"]["tensors"] == 3
