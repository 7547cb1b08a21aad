"""Two hosts, made once for all tests in this folder, which one test process runs."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.support.cluster import Cluster
from tests.support import namespaces
from tests.support.namespaces import Hosts, running_on

HERE = Path(__file__).parent
STRICT = {"RDMA_TRANSPORT_FALLBACK": "forbid"}
JOBS = {"a": 1, "b": 1, "c": 1}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("hosts"))


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    try:
        ctypes.CDLL("libfabric.so.1")
    except OSError as error:
        pytest.skip(f"{error}: apt-get install libfabric1")
    try:
        made = namespaces.made()
    except namespaces.UnavailableError as error:
        pytest.skip(str(error))
    yield made
    made.end()


@pytest.fixture(scope="session")
def clusters(hosts: Hosts) -> Iterator[dict[str, Cluster]]:
    """Tasks a and c on the first host, b on the second."""
    with running_on(hosts, JOBS, "rdma", STRICT) as rdma, running_on(hosts, JOBS, "grpc") as grpc:
        yield {"grpc": grpc, "rdma": rdma}


@pytest.fixture(scope="session")
def rdma(clusters: dict[str, Cluster]) -> Cluster:
    return clusters["rdma"]
