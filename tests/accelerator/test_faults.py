"""What goes wrong with accelerators is an error within a bound, and what comes after it works."""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.accelerator.conftest import JOBS
from tests.accelerator.test_edges import A0, A1, A_CPU, B0, B1, B_CPU, at, computed, tasks, values
from tests.plugin.test_faults import SLACK, Background
from tests.support.accelerators import AcceleratorCluster, over_both
from tests.support.deadlines import eventually, patient
from tests.support.graphs import Graph, v1

pytestmark = [pytest.mark.timeout(90), pytest.mark.xdist_group("accelerator_faults")]

RETRY_SECONDS = 10.0  # so long TensorFlow's allocator waits for memory
SMALL, LARGE = 5000, 4_000_000
PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "rdma"])


def crossings() -> Any:
    """Ends of `n` elements that crossed from and to accelerators."""
    n = v1.placeholder(tf.int32, [], "n")
    with tf.device(A_CPU):
        data = tf.cast(tf.range(n), tf.float32)
    back = computed(A1, computed(B0, computed(A0, data)))
    return at(B_CPU, back)[-3:]


def back_and_forth() -> Any:
    """The same, with a device that waits for what becomes of a tensor it sent."""
    n = v1.placeholder(tf.int32, [], "n")
    with tf.device(A_CPU):
        data = tf.cast(tf.range(n), tf.float32)
    back = computed(A1, computed(B0, computed(A0, data)))
    return at(A_CPU, computed(A0, computed(B0, back)))[-3:]


def beside() -> Any:
    """Crosses without an accelerator."""
    with tf.device(A_CPU):
        data = tf.random.uniform([30_000])
    with tf.device(B_CPU):
        return tf.reduce_sum(data)


def endless() -> Any:
    """Goes back and forth between accelerators until one is lost."""
    v1.disable_control_flow_v2()

    def body(x: Any, y: Any) -> Any:
        with tf.device(B0):
            x = tf.negative(x)
        with tf.device(B1):
            y = tf.square(y)
        with tf.device(A0):
            return tf.negative(x), tf.negative(y)

    with tf.device(A_CPU):
        start = [tf.constant(values([count])) for count in (200, 300_000)]
        forever = tf.constant(True)
        return v1.while_loop(lambda *_: tf.identity(forever), body, start)


def run(graph: Graph, n: int = SMALL, seconds: float = 30) -> None:
    """A step, whose result must be right."""
    feed = {graph.graph.get_tensor_by_name("n:0"): n}
    got = graph.run(feed=feed, timeout_in_ms=int(seconds * 1000))
    assert np.array_equal(got, [-(n - 3.0), -(n - 2.0), -(n - 1.0)])


@contextmanager
def ready(cluster: AcceleratorCluster) -> Iterator[Graph]:
    """A session that did steps."""
    with Graph(cluster, crossings) as graph:
        run(graph)
        run(graph)
        yield graph


@pytest.fixture(scope="module", params=["grpc", "rdma"])
def cluster(request: pytest.FixtureRequest) -> Iterator[AcceleratorCluster]:
    """Survives all tests that use it."""
    with AcceleratorCluster(JOBS, request.param) as made:
        yield made


def assert_nothing_is_held(cluster: AcceleratorCluster) -> None:
    """Copies have ended, and the buffers are released that they and tensors on the way need."""
    if cluster.protocol == "grpc":
        return
    for task in tasks(cluster):
        assert eventually(lambda task=task: task.count()["pending"] == 0)
        assert eventually(lambda task=task: task.stats()["outstanding_tensors"] == 0)
        assert eventually(lambda task=task: task.stats()["unclaimed_tensors"] == 0)


def no_memory(protocol: str) -> None:
    with (
        AcceleratorCluster(JOBS, protocol) as cluster,
        ready(cluster) as graph,
        Graph(cluster, beside) as other,
    ):
        other.run()
        _, b = tasks(cluster)
        b.set("fail_alloc=1")
        began = time.monotonic()
        step = Background(
            graph, feed={graph.graph.get_tensor_by_name("n:0"): LARGE}, timeout_in_ms=40_000
        )
        time.sleep(1)
        for _ in range(5):  # what needs no memory of an accelerator is not held up
            started = time.monotonic()
            other.run(timeout_in_ms=20_000)
            assert time.monotonic() - started < patient(SLACK)
        assert step.seconds_after(began, 60) < RETRY_SECONDS + patient(SLACK)
        assert isinstance(step.error, tf.errors.ResourceExhaustedError | tf.errors.InternalError)
        b.set("fail_alloc=0")
        run(graph)
        run(graph, LARGE)
        assert_nothing_is_held(cluster)


def test_a_device_without_memory_for_what_arrives() -> None:
    with ThreadPoolExecutor() as both:  # for each takes as long as the allocator waits
        for ended in [both.submit(no_memory, protocol) for protocol in ("grpc", "rdma")]:
            ended.result()


@pytest.mark.parametrize("n", [SMALL, LARGE])
@pytest.mark.parametrize("fault", ["fail_dtoh", "fail_htod"])
def test_a_copy_that_the_device_refuses(cluster: AcceleratorCluster, fault: str, n: int) -> None:
    with ready(cluster) as graph:
        a, b = tasks(cluster)
        (a if fault == "fail_dtoh" else b).set(f"{fault}=1")
        began = time.monotonic()
        with pytest.raises(tf.errors.InternalError):
            run(graph, n)
        assert time.monotonic() - began < 1 + patient(SLACK)
        for count in (n, SMALL, LARGE):
            run(graph, count)
        assert_nothing_is_held(cluster)


@pytest.mark.parametrize("n", [SMALL, LARGE])
@PROTOCOLS
def test_a_stream_in_error(protocol: str, n: int) -> None:
    """TensorFlow ends a process whose device is in error; that is an error for the others."""
    with AcceleratorCluster(JOBS, protocol) as cluster, Graph(cluster, back_and_forth) as graph:
        run(graph, SMALL)
        run(graph, n)
        a, b = tasks(cluster)
        b.set("fail_stream=1")
        began = time.monotonic()
        with pytest.raises((tf.errors.UnavailableError, tf.errors.AbortedError)):
            run(graph, n)
        assert time.monotonic() - began < 1 + patient(SLACK)
        assert eventually(lambda: b.process.poll() is not None)
        assert a.process.poll() is None
        if protocol == "rdma":
            assert eventually(lambda: a.stats()["outstanding_tensors"] == 0)


@pytest.mark.parametrize(("protocol", "copy_us"), [("grpc", 0), ("rdma", 0), ("rdma", 20_000)])
def test_a_task_killed_amid_steps(protocol: str, copy_us: int) -> None:
    with AcceleratorCluster(JOBS, protocol) as cluster:
        with ready(cluster) as graph:
            pass
        cluster.set(f"copy_us={copy_us}")
        a, b = tasks(cluster)
        with Graph(cluster, endless) as graph:
            step = Background(graph)
            arrived = b.count()["htod_copies"]
            assert eventually(lambda: b.count()["htod_copies"] > arrived + 10, 20)
            b.signal(signal.SIGKILL)
            assert step.seconds_after(time.monotonic(), 30) < 1 + patient(SLACK)
            assert isinstance(step.error, tf.errors.UnavailableError), step.error
            assert "/job:b/replica:0/task:0" in str(step.error)
        a.set("copy_us=0")
        if protocol == "rdma":
            assert eventually(lambda: a.stats()["outstanding_tensors"] == 0)
            assert eventually(lambda: a.count()["pending"] == 0)
        cluster.restart("b", 0)
        with works_at_last(cluster) as graph:
            run(graph, LARGE)


@contextmanager
def works_at_last(cluster: AcceleratorCluster) -> Iterator[Graph]:
    """A new session; the first may still meet what was before."""
    for attempt in range(3):
        try:
            with Graph(cluster, crossings) as graph:
                run(graph)
        except (tf.errors.AbortedError, tf.errors.UnavailableError):
            assert attempt < 2
            time.sleep(1)
        else:
            break
    with Graph(cluster, crossings) as graph:
        yield graph


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_a_step_that_ends_during_slow_copies(cluster: AcceleratorCluster, n: int) -> None:
    with ready(cluster) as graph:
        cluster.set("copy_us=3000000")  # so all of them take longer than the step may
        began = time.monotonic()
        with pytest.raises(tf.errors.DeadlineExceededError):
            run(graph, n, seconds=1)
        assert time.monotonic() - began < 1 + patient(SLACK)
        cluster.set("copy_us=0")
        for count in (SMALL, n, LARGE, SMALL):
            run(graph, count)
        assert_nothing_is_held(cluster)


def test_a_session_that_is_closed_during_slow_copies(cluster: AcceleratorCluster) -> None:
    with ready(cluster) as graph:
        cluster.set("copy_us=500000")
        closed = Graph(cluster, crossings)
        step = Background(closed, feed={closed.graph.get_tensor_by_name("n:0"): SMALL})
        time.sleep(0.7)
        began = time.monotonic()
        threading.Thread(target=closed.session.close, daemon=True).start()
        step.seconds_after(began, 30)  # with an error, or with what had been computed
        assert step.error is None or isinstance(step.error, tf.errors.OpError), step.error
        cluster.set("copy_us=0")
        run(graph)
        assert_nothing_is_held(cluster)


def test_no_registered_memory_for_a_staged_copy() -> None:
    """What the fabric cannot stage falls back to gRPC, where that is allowed."""
    small = {"RDMA_TRANSPORT_ARENA_SIZE": "2MiB", "RDMA_TRANSPORT_FALLBACK": "allow"}
    with over_both(JOBS, small) as clusters:
        for cluster in clusters.values():
            with Graph(cluster, crossings) as graph:
                for count in (SMALL, LARGE, SMALL, LARGE):
                    run(graph, count)
