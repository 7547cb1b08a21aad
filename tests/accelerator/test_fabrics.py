"""The same bits over other fabrics, and without mapped memory."""

import pytest

from tests.accelerator.test_edges import (  # noqa: F401
    A0,
    B0,
    computed,
    test_each_side_copies_once,
    test_every_shape,
    test_shapes_that_change_in_each_step,
    test_sources_are_freed_and_overwritten_right_after_the_send,
    test_values_that_change_in_each_step,
    values,
)
from tests.support.accelerators import Clusters
from tests.support.deadlines import eventually
from tests.support.graphs import Graph

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("accelerators")]

LIBFABRIC = {
    "RDMA_TRANSPORT_FABRIC": "libfabric",
    "RDMA_TRANSPORT_LIBFABRIC_PROVIDER": "tcp",
    "RDMA_TRANSPORT_LIBFABRIC_INTERFACE": "lo",
}
FABRICS = {"copied": {"RDMA_TRANSPORT_ZERO_COPY": "off"}, "libfabric": LIBFABRIC}


@pytest.fixture(scope="module", params=FABRICS)
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    return FABRICS[request.param]


def test_the_transport_is_the_one_asked_for(both: Clusters, settings: dict[str, str]) -> None:
    expected = settings.get("RDMA_TRANSPORT_FABRIC", "shm")
    rdma = both["rdma"]
    with Graph(rdma, lambda: computed(B0, computed(A0, values([5000])))) as graph:
        graph.run()

    def transports() -> list[str]:
        stats = [task.stats() for task in rdma.tasks.values()]
        return [peer["transport"] for task in stats for peer in task["peers"]]

    assert eventually(lambda: transports() == [expected, expected]), transports()
