"""Clusters that tests of accelerator tensors share."""

from collections.abc import Iterator

import pytest

from tests.support.accelerators import Clusters, assert_by_fabric, over_both

LATE_US = 3000


@pytest.fixture(scope="module")
def both() -> Iterator[Clusters]:
    """Tasks a and b with two accelerators each, over gRPC and over rdma."""
    with over_both({"a": 1, "b": 1}) as made:
        yield made


@pytest.fixture(params=[0, LATE_US], ids=["at_once", "late"])
def clusters(both: Clusters, request: pytest.FixtureRequest) -> Iterator[Clusters]:
    """The same, without delays and with; no tensor of a test may fall back to gRPC."""
    for cluster in both.values():
        cluster.set(f"delay_us={request.param}")
    yield both
    assert_by_fabric(both["rdma"])
