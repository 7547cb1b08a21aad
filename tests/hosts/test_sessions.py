"""Session graphs over tasks of two hosts: libfabric between them, shared memory on one of them."""

from typing import Any

import pytest
import tensorflow as tf

from bench.support.cluster import Cluster
from tests.plugin.test_equality import (  # noqa: F401
    test_a_source_overwritten_right_after_the_send,
    test_every_type_and_shape,
    test_several_sessions_and_steps_at_once,
    test_shapes_that_change_between_steps,
    test_tensors_bounced_between_tasks,
    test_while_loop_across_tasks,
)
from tests.support.graphs import Graph
from tests.support.namespaces import ADDRESSES

pytestmark = pytest.mark.timeout(120)


def from_each_to_each() -> Any:
    drawn = []
    for job in "abc":
        with tf.device(f"/job:{job}/task:0"):
            drawn.append(tf.random.uniform([256]))
    sums = []
    for job in "abc":
        with tf.device(f"/job:{job}/task:0"):
            sums.append(tf.add_n(drawn))
    return tf.group(*sums)


@pytest.fixture
def met(rdma: Cluster) -> Cluster:
    """The cluster, of which each task has sent a tensor to each other one."""
    with Graph(rdma, from_each_to_each) as graph:
        graph.run()
    return rdma


def test_the_transport_is_libfabric_between_hosts_and_shm_on_one(met: Cluster) -> None:
    for job, expected in (
        ("a", {"b": "libfabric", "c": "shm"}),
        ("b", {"a": "libfabric", "c": "libfabric"}),
        ("c", {"a": "shm", "b": "libfabric"}),
    ):
        peers = {peer["task"].split("/")[1][4:]: peer for peer in met[job, 0].stats()["peers"]}
        assert {name: peer["transport"] for name, peer in peers.items()} == expected
        for name, peer in peers.items():
            if expected[name] == "libfabric":
                for address in ADDRESSES:
                    assert address in peer["reason"], peer


def test_no_number_went_by_grpc(met: Cluster) -> None:
    for task in met.tasks.values():
        stats = task.stats()
        assert stats["errors"] == {}
        assert stats["fallback_reasons"] == {}
        assert stats["sent"]["grpc"] == stats["received"]["grpc"] == {"tensors": 0, "bytes": 0}
