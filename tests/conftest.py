"""Clusters that several tests share, and how tasks start: without importing TensorFlow again."""

import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import pytest_timeout

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # no Keras: half of the time of importing TensorFlow
sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.support import python
from bench.support.cluster import Cluster
from tests.support import deadlines, fake_verbs, forked
from tests.support.exhaustive import is_exhaustive

python.starter = forked.start
# Each test has its own limit, and a busy machine makes the generation of examples slow.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")
# A background job of a shell ignores it, and so would all processes that the tests start.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One of several test processes has the shared clusters, and all tests that use them."""
    for item in items:
        if is_exhaustive(item):
            item.add_marker(pytest.mark.exhaustive)
        shares = "clusters" in getattr(item, "fixturenames", ())
        if shares and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("clusters"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let one of several test processes import TensorFlow now, not within a test's time limit."""
    if hasattr(session.config, "workerinput"):
        before = time.monotonic()
        forked.run(["-c", ""], timeout=600)
        deadlines.measured(time.monotonic() - before)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import the tests without looking for garbage, which takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> object:
    """Give a test the time of this machine. If it hangs outside of Python, end its process."""
    settings = settings._replace(timeout=deadlines.patient(settings.timeout))
    if not pytest_timeout.is_debugging():
        faulthandler.dump_traceback_later(2 * settings.timeout, exit=True, file=sys.__stderr__)
    return pytest_timeout.pytest_timeout_set_timer(item, settings)


def pytest_timeout_cancel_timer() -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_enter_pdb() -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Show a failure at once: the run may be ended before its summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid}: {report.when}\n{report.longreprtext}", flush=True)


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
