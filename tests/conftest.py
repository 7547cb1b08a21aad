"""Clusters that several tests share, and how tasks start: without importing TensorFlow again."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # no Keras: half of the time of importing TensorFlow
sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.support import python
from bench.support.cluster import Cluster
from tests.support import fake_verbs, forked

python.starter = forked.start
# A background job of a shell ignores it, and so would all processes that the tests start.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One of several test processes has the shared clusters, and all tests that use them."""
    for item in items:
        shares = "clusters" in getattr(item, "fixturenames", ())
        if shares and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("clusters"))


@pytest.fixture(autouse=True)
def _stays_eager() -> Iterator[None]:
    """Those that follow in this process may need it."""
    yield
    if tensorflow := sys.modules.get("tensorflow"):
        assert tensorflow.executing_eagerly(), "the test has disabled eager execution"


@pytest.fixture(scope="session")
def clusters() -> Iterator[dict[str, Cluster]]:
    """Three tasks a, b, c, once over gRPC and once over rdma."""
    made = {protocol: Cluster({"a": 1, "b": 1, "c": 1}, protocol) for protocol in ("grpc", "rdma")}
    yield made
    for cluster in made.values():
        cluster.end()


@pytest.fixture(scope="session")
def rdma(clusters: dict[str, Cluster]) -> Cluster:
    return clusters["rdma"]


@pytest.fixture(scope="module", params=["shm", "verbs", "libfabric"])
def fabric(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each fabric, set for this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDMA_TRANSPORT_FABRIC", request.param)
        if request.param == "verbs":
            patch.setenv("RDMA_TRANSPORT_LIBIBVERBS", str(fake_verbs.fake_library()))
        if request.param == "libfabric":
            patch.setenv("RDMA_TRANSPORT_LIBFABRIC_INTERFACE", "lo")
        yield request.param
