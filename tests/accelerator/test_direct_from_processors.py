"""Cards that read tensors of a processor into the memory of accelerators: no slot, and no copy."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.accelerator.conftest import JOBS
from tests.accelerator.test_direct import (
    assert_late_kernels_read_what_they_should,
    beside_late_kernels,
    sent_to,
)
from tests.accelerator.test_edges import A0, A_CPU, B0, B1, B_CPU, at, computed, tasks, values
from tests.accelerator.test_faults import (
    LARGE,
    RETRY_SECONDS,
    SLACK,
    SMALL,
    assert_nothing_is_held,
    run,
    works_at_last,
)
from tests.plugin.test_faults import Background
from tests.support import fake_verbs
from tests.support.accelerators import AcceleratorCluster, AcceleratorTask, Clusters, exporting
from tests.support.deadlines import eventually, patient
from tests.support.graphs import Graph, assert_equal_over_both, same_bits, v1

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("accelerators")]


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return exporting(GPU_DIRECT="on")


def there_and_back() -> Any:
    """Ends of `n` elements that crossed from a processor to an accelerator, and back."""
    n = v1.placeholder(tf.int32, [], "n")
    with tf.device(A_CPU):
        data = tf.cast(tf.range(n), tf.float32)
    return at(A_CPU, computed(B1, at(A_CPU, at(B_CPU, computed(B0, data)))))[-3:] * -1.0


def endless(processor: str, accelerator: str) -> Any:
    v1.disable_control_flow_v2()

    def body(x: Any) -> Any:
        with tf.device(accelerator):
            x = tf.negative(x)
        with tf.device(processor):
            return tf.negative(x)

    with tf.device(A_CPU):
        forever = tf.constant(True)
        return v1.while_loop(lambda _: tf.identity(forever), body, [tf.constant(values([300_000]))])


def several(graph: Graph) -> None:
    for _ in range(3):
        run(graph, LARGE)


def direct_bytes(task: AcceleratorTask) -> int:
    count: int = task.stats()["device_direct_bytes"]
    return count


def static_tensors(task: AcceleratorTask) -> int:
    count: int = task.stats()["sent"]["static"]["tensors"]
    return count


@contextmanager
def reading(cluster: AcceleratorCluster, n: int = LARGE) -> Iterator[Graph]:
    """A session after whose steps the card reads such tensors into the accelerators of task b."""
    b = tasks(cluster)[1]
    with Graph(cluster, there_and_back) as graph:

        def reads() -> bool:
            before = direct_bytes(b)
            for _ in range(3):
                run(graph, n)
            return direct_bytes(b) - before == 3 * 3 * 4 * n  # two arrive, and one is read there

        assert eventually(reads, 20)
        yield graph


@pytest.mark.parametrize("static", ["on", "off"])
def test_a_tensor_of_a_processor_is_not_copied(static: str) -> None:
    """With static edges, the first one comes in a slot; then the receiver asks for no more."""
    with AcceleratorCluster(JOBS, "rdma", exporting(GPU_DIRECT="on", STATIC=static)) as cluster:
        a, b = tasks(cluster)

        def build() -> Any:
            with tf.device(A_CPU):
                data = tf.random.uniform([300_000], seed=1)
            return tf.reduce_sum(tf.abs(data)), computed(B_CPU, computed(B0, data))

        with Graph(cluster, build) as graph:
            counted = [(b.count(), b.stats())]

            def step() -> dict[str, int]:
                total, back = graph.run()
                assert np.isclose(total, np.abs(back).sum(), rtol=1e-4)
                counted.append((b.count(), b.stats()))
                (old, before), (new, after) = counted[-2:]
                return {
                    "copies": new["htod_copies"] - old["htod_copies"],
                    "copied": after["device_copied_bytes"] - before["device_copied_bytes"],
                    "direct": after["device_direct_bytes"] - before["device_direct_bytes"],
                }

            direct = {"copies": 0, "copied": 0, "direct": 1_200_000}
            # The very first may come before there are slots.
            assert eventually(lambda: [step() for _ in range(3)] == [direct] * 3, 30)
            slots = a.stats()["plan"]["slot_allocations"]
            assert [step() for _ in range(3)] == [direct] * 3
            assert a.stats()["plan"]["slot_allocations"] == slots
            assert "static" not in {edge["mode"] for edge in a.stats()["plan"]["edges"]}
        assert direct_bytes(a) == 0


def test_several_sizes_at_once(clusters: Clusters) -> None:
    """Of the three, all are large enough for the card."""
    rdma = clusters["rdma"]
    b = tasks(rdma)[1]
    with Graph(rdma, lambda: sent_to(B0, source=A_CPU)) as graph:

        def copies() -> int:
            before = b.count()["htod_copies"]
            graph.run()
            return b.count()["htod_copies"] - before

        assert eventually(lambda: [copies() for _ in range(3)] == [0, 0, 0], 30)
        assert copies() == 0


def test_values_that_change_in_each_step(clusters: Clusters) -> None:
    """From the first steps, in which tensors come in slots, to those in which the card reads."""

    def build() -> Any:
        scale = v1.placeholder(tf.float32, [], "scale")
        fetched = []
        for i, count in enumerate((100, 20_000, 400_000)):
            with tf.device(A_CPU):
                x = tf.constant(values([count], i)) * scale
            fetched += [computed(B0, x), computed(A_CPU, computed(B1, x))]
        return fetched

    b = tasks(clusters["rdma"])[1]
    before = direct_bytes(b)
    scales = np.arange(1, 13, dtype=np.float32)
    for result, scale in zip(
        assert_equal_over_both(clusters, build, feeds=("scale:0", scales)), scales, strict=True
    ):
        assert same_bits(result[2], -(values([20_000], 1) * scale))
    assert direct_bytes(b) - before > 4 * 400_000


def test_a_variable_that_is_updated_after_the_send(clusters: Clusters) -> None:
    """Weights of a parameter server: the card must not read the next ones."""

    def build() -> Any:
        with tf.device(A_CPU):
            weights = v1.get_variable("w", initializer=values([100_000]), use_resource=True)
            sent = weights.read_value()
        arrived = computed(B0, sent)
        with tf.control_dependencies([sent]), tf.device(A_CPU):
            updated = weights.assign_sub(weights.read_value() * 0.125)
        with tf.control_dependencies([updated]):
            return arrived, tf.identity(weights.read_value())

    assert_equal_over_both(clusters, build, steps=8)


def test_a_card_does_not_write_to_memory_that_kernels_still_read(both: Clusters) -> None:
    rdma = both["rdma"]
    rdma.set("delay_us=0")
    b = tasks(rdma)[1]

    def build() -> Any:
        def arrive(data: Any) -> Any:
            with tf.device(A_CPU):
                return computed(B0, tf.negative(data))

        return beside_late_kernels(arrive)

    with Graph(rdma, build) as graph:

        def reads() -> bool:
            before = b.count()["htod_copies"]
            for _ in range(3):
                graph.run()
            return b.count()["htod_copies"] == before

        assert eventually(reads, 30)
        assert_late_kernels_read_what_they_should(graph, b)


@pytest.mark.parametrize(
    "given",
    [{"fake": "fail=reg_dmabuf_mr:1:ENOMEM"}, {"GPU_DIRECT": "off"}, {"fabric": "auto"}],
    ids=["refused", "off", "one_host"],
)
def test_otherwise_the_edge_stays_static(given: dict[str, str]) -> None:
    with AcceleratorCluster(JOBS, "rdma", exporting(**given)) as cluster:
        a, b = tasks(cluster)

        def build() -> Any:
            with tf.device(A_CPU):
                data = tf.negative(tf.constant(values([300_000])))
            return computed(B0, data)

        with Graph(cluster, build) as graph:

            def three_steps() -> list[int]:
                before = static_tensors(a), b.count()["htod_copies"]
                for _ in range(3):
                    assert same_bits(graph.run(), values([300_000]))
                after = static_tensors(a), b.count()["htod_copies"]
                return [new - old for old, new in zip(before, after, strict=True)]

            for _ in range(2):
                three_steps()
            # A step that finds no free slot gets one more for those after it.
            assert eventually(lambda: three_steps() == [3, 3])


def test_a_kernel_that_reads_in_the_hosts_memory_keeps_its_slot(both: Clusters) -> None:
    def build() -> Any:
        with tf.device(A_CPU):
            data = tf.negative(tf.constant(values([300_000])))
        with tf.device(B0):
            return tf.abs(data)

    rdma = both["rdma"]
    a = tasks(rdma)[0]
    with Graph(rdma, build) as graph:

        def three_steps() -> int:
            before = static_tensors(a)
            for _ in range(3):
                assert same_bits(graph.run(), np.abs(values([300_000])))
            return static_tensors(a) - before

        three_steps()
        # A step that finds no free slot gets one more for those after it.
        assert eventually(lambda: three_steps() == 3)


@pytest.mark.parametrize("accelerator_at", ["b", "a"])
def test_a_task_killed_amid_reads(accelerator_at: str) -> None:
    """The one whose card reads, and the one from which it reads."""
    ends = {"a": (B_CPU, A0), "b": (A_CPU, B0)}[accelerator_at]
    with AcceleratorCluster(JOBS, "rdma", exporting(fake="delay_us=3000")) as cluster:
        a, b = tasks(cluster)
        reader = {"a": a, "b": b}[accelerator_at]
        with Graph(cluster, lambda: endless(*ends)) as graph:
            step = Background(graph)
            assert eventually(lambda: direct_bytes(reader) > 10_000_000, 20)
            b.signal(signal.SIGKILL)
            assert step.seconds_after(time.monotonic(), 30) < 1 + patient(SLACK)
            assert isinstance(step.error, tf.errors.UnavailableError), step.error
            assert "/job:b/replica:0/task:0" in str(step.error)
        assert eventually(lambda: a.stats()["outstanding_tensors"] == 0)
        assert eventually(lambda: a.stats()["unclaimed_tensors"] == 0)
        assert eventually(lambda: a.count()["pending"] == 0)
        cluster.restart("b", 0)
        with works_at_last(cluster), reading(cluster):
            pass


def test_a_step_that_ends_amid_reads() -> None:
    with (
        AcceleratorCluster(JOBS, "rdma", exporting(fake="retry_ms=20000")) as cluster,
        reading(cluster) as graph,
    ):
        pids = [task.process.pid for task in tasks(cluster)]
        for pid in pids:
            fake_verbs.tell(pid, "break_path 1")
        began = time.monotonic()
        with pytest.raises(tf.errors.DeadlineExceededError):
            run(graph, LARGE, seconds=0.5)
        assert time.monotonic() - began < 1 + patient(SLACK)
        for pid in pids:
            fake_verbs.tell(pid, "break_path 0")
        for count in (SMALL, LARGE, SMALL):
            run(graph, count)
        assert_nothing_is_held(cluster)


def test_a_stream_in_error_before_a_read() -> None:
    """TensorFlow ends a process whose device is in error; that is an error for the others.

    It finds out when it waits for the stream, which the read of the next step does.
    """
    with (
        AcceleratorCluster(JOBS, "rdma", exporting(GPU_DIRECT="on")) as cluster,
        reading(cluster) as graph,
    ):
        a, b = tasks(cluster)
        b.set("fail_stream=1")
        began = time.monotonic()
        with pytest.raises((tf.errors.UnavailableError, tf.errors.AbortedError)):
            several(graph)
        assert time.monotonic() - began < 1 + patient(SLACK)
        assert eventually(lambda: b.process.poll() is not None)
        assert a.process.poll() is None
        assert eventually(lambda: a.stats()["outstanding_tensors"] == 0)


def test_a_device_without_memory_for_what_arrives() -> None:
    """The card reads into the host's memory; then TensorFlow's allocator waits in vain."""
    with (
        AcceleratorCluster(JOBS, "rdma", exporting(GPU_DIRECT="on")) as cluster,
        reading(cluster, 100_000) as graph,
    ):
        b = tasks(cluster)[1]
        b.set("fail_alloc=1")
        began = time.monotonic()
        with pytest.raises((tf.errors.ResourceExhaustedError, tf.errors.InternalError)):
            run(graph, 10 * LARGE, seconds=40)
        assert time.monotonic() - began < RETRY_SECONDS + patient(SLACK)
        b.set("fail_alloc=0")
        run(graph)
        run(graph, LARGE)
        assert_nothing_is_held(cluster)
