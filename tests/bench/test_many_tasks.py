"""A job that loses a third of its workers halfway goes on with the same losses as over gRPC."""

import pytest

from bench import many_tasks

pytestmark = pytest.mark.timeout(240)


def test_losses_are_equal_although_workers_die() -> None:
    counted = 0

    def progress() -> None:
        nonlocal counted
        counted += 1

    over_grpc, over_rdma = (
        many_tasks.train(protocol, servers=1, workers=3, steps=8, restart=True, progress=progress)
        for protocol in ("grpc", "rdma")
    )
    assert counted == 16
    assert over_rdma.losses == over_grpc.losses
    assert len(over_rdma.losses) == len(over_rdma.milliseconds) == 8
    for run in (over_grpc, over_rdma):
        assert run.failed_steps >= 1
        assert run.error in ("UnavailableError", "AbortedError", "InternalError")
    assert sum(over_grpc.sent.values()) == 0
    assert over_rdma.sent["static"] > 0
    assert over_rdma.sent["grpc"] == 0
