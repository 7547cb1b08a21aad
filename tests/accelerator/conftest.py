"""Clusters that tests of accelerator tensors share."""

from collections.abc import Iterator

import pytest

from tests.support.accelerators import AcceleratorCluster, Clusters, assert_by_fabric

JOBS = {"a": 1, "b": 1}
LATE_US = 3000


@pytest.fixture(scope="session")
def over_grpc() -> Iterator[AcceleratorCluster]:
    with AcceleratorCluster(JOBS, "grpc") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    """Of the tasks over rdma; modules have their own."""
    return {}


@pytest.fixture(scope="module")
def both(over_grpc: AcceleratorCluster, settings: dict[str, str]) -> Iterator[Clusters]:
    """Tasks a and b with two accelerators each, over gRPC and over rdma."""
    with AcceleratorCluster(JOBS, "rdma", settings) as rdma:
        yield {"grpc": over_grpc, "rdma": rdma}


@pytest.fixture(params=[0, LATE_US], ids=["at_once", "late"])
def clusters(both: Clusters, request: pytest.FixtureRequest) -> Iterator[Clusters]:
    """The same, without delays over rdma and with; there no tensor may fall back to gRPC."""
    both["rdma"].set(f"delay_us={request.param}")
    yield both
    assert_by_fabric(both["rdma"])
