"""TensorFlow's front ends between two hosts: the bits of gRPC, and no numeric tensor by it."""

import pytest

from bench.support.counters import Counts
from tests.support.clients import connected
from tests.support.namespaces import Hosts

pytestmark = pytest.mark.timeout(120)
STEPS = 4
NOT_NUMERIC = {"a string tensor"}


def transports(reports: list[Counts]) -> set[str]:
    """By which tensors are sent; some tasks have none for each other."""
    peers = [peer for report in reports for peer in report["peers"]]
    print(*peers, sep="\n")  # for when the test fails
    return {peer["transport"] for peer in peers} - {"idle", "connecting"}


@pytest.mark.parametrize("front_end", ["functions", "coordinator", "fit", "mirrored"])
def test_it_learns_the_same_by_the_fabric(hosts: Hosts, front_end: str) -> None:
    weights = {}
    for protocol in ("grpc", "rdma"):
        with connected(front_end, protocol, layout=hosts.place) as client:
            client.run(STEPS)
            weights[protocol] = client.weights()
            if protocol == "rdma":
                reports = client.reports()
                assert {"libfabric"} <= transports(reports) <= {"libfabric", "shm"}
                for report in reports:
                    assert report["errors"] == {}
                    assert set(report["fallback_reasons"]) <= NOT_NUMERIC
    assert weights["grpc"] == weights["rdma"]
