"""Session graphs over tasks of two hosts: libfabric between them, shared memory on one of them."""

import pytest

from bench.support.cluster import Cluster
from tests.plugin.test_equality import (  # noqa: F401
    test_a_source_overwritten_right_after_the_send,
    test_every_type_and_shape,
    test_several_sessions_and_steps_at_once,
    test_shapes_that_change_between_steps,
    test_tensors_bounced_between_tasks,
    test_while_loop_across_tasks,
)
from tests.support.namespaces import ADDRESSES

pytestmark = pytest.mark.timeout(120)


def test_the_transport_is_libfabric_between_hosts_and_shm_on_one(rdma: Cluster) -> None:
    """After all of the above."""
    for job, expected in (
        ("a", {"b": "libfabric", "c": "shm"}),
        ("b", {"a": "libfabric", "c": "libfabric"}),
        ("c", {"a": "shm", "b": "libfabric"}),
    ):
        peers = {peer["task"].split("/")[1][4:]: peer for peer in rdma[job, 0].stats()["peers"]}
        assert {name: peer["transport"] for name, peer in peers.items()} == expected
        for name, peer in peers.items():
            if expected[name] == "libfabric":
                for address in ADDRESSES:
                    assert address in peer["reason"], peer


def test_no_number_went_by_grpc(rdma: Cluster) -> None:
    for task in rdma.tasks.values():
        stats = task.stats()
        assert stats["errors"] == {}
        assert stats["fallback_reasons"] == {}
        assert stats["sent"]["grpc"] == stats["received"]["grpc"] == {"tensors": 0, "bytes": 0}
