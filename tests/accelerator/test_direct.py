"""Cards that read and write the memory of accelerators themselves: the same bits, and no copies."""

import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.accelerator.conftest import JOBS
from tests.accelerator.test_edges import (  # noqa: F401
    A0,
    A1,
    A_CPU,
    B0,
    B1,
    B_CPU,
    computed,
    tasks,
    test_a_loop_over_accelerators,
    test_a_variable_that_is_assigned_after_the_send,
    test_a_variable_that_is_assigned_what_was_received,
    test_branches_not_taken_are_dead_on_accelerators,
    test_every_shape,
    test_every_type,
    test_from_a_device_to_a_kernel_that_reads_in_the_hosts_memory,
    test_host_memory_of_accelerator_operations,
    test_one_tensor_for_several_devices,
    test_shapes_that_change_in_each_step,
    test_sources_are_freed_and_overwritten_right_after_the_send,
    test_steps_of_several_sessions_at_once,
    test_values_that_change_in_each_step,
    values,
)
from tests.accelerator.test_faults import (
    LARGE,
    SLACK,
    SMALL,
    assert_nothing_is_held,
    endless,
    ready,
    run,
    works_at_last,
)
from tests.plugin.test_faults import Background
from tests.support import fake_verbs
from tests.support.accelerators import (
    CUDA,
    AcceleratorCluster,
    AcceleratorTask,
    Clusters,
    exporting,
)
from tests.support.deadlines import eventually, patient
from tests.support.graphs import Graph, same_bits, v1

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("accelerators")]


SIZES = [20_000, 300_000, 2**20 + 3]
EDGES = {"accelerator": B0, "cpu": B_CPU}
ELEMENTS, KERNELS = 300_000, 12  # of tensors beside late kernels


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return exporting(GPU_DIRECT="on")


def sent_to(device: str, source: str = A0) -> Any:
    with tf.device(source):
        variables = [
            v1.get_variable(f"v{n}", initializer=values([n], n), use_resource=True) for n in SIZES
        ]
        sent = [tf.negative(variable.read_value()) for variable in variables]
    return tf.group(*[computed(device, tensor) for tensor in sent])


def direct_bytes(cluster: AcceleratorCluster) -> int:
    return sum(task.stats()["device_direct_bytes"] for task in tasks(cluster))


@pytest.mark.parametrize("to", EDGES)
def test_no_device_copies(clusters: Clusters, to: str) -> None:
    rdma = clusters["rdma"]
    a, b = tasks(rdma)
    slots = [task.stats()["plan"]["slot_allocations"] for task in (a, b)]
    with Graph(rdma, lambda: sent_to(EDGES[to])) as graph:
        for _ in range(2):  # the first step may begin before the peers are linked
            graph.run()
        before = [(task.count(), task.stats()) for task in (a, b)]
        for _ in range(3):
            graph.run()
        after = [(task.count(), task.stats()) for task in (a, b)]
    assert [task["plan"]["slot_allocations"] for _, task in after] == slots
    for ends, (old, new) in zip(("a", to), zip(before, after, strict=True), strict=True):
        for name in ("dtoh_copies", "htod_copies", "dtod_copies"):
            assert new[0][name] == old[0][name]
        assert new[1]["device_copied_bytes"] == old[1]["device_copied_bytes"]
        expected = 0 if ends == "cpu" else 3 * 4 * sum(SIZES)
        assert new[1]["device_direct_bytes"] - old[1]["device_direct_bytes"] == expected
        # Each allocation is registered once, when a tensor in it is first sent or received.
        assert new[1]["direct"]["registered_bytes"] <= new[0]["allocated_bytes"]
        assert new[1]["direct"]["refused"] == 0


def beside_late_kernels(arrive: Callable[[Any], Any]) -> Any:
    """The end of a chain of kernels of B0, and what arrives of a tensor that leaves meanwhile."""
    with tf.device(B0):
        x = tf.negative(tf.constant(values([ELEMENTS])))
        for _ in range(KERNELS):
            x = x * 0.5
        enqueued = tf.shape(x)  # in the host's memory, and so not late
    with tf.device(A_CPU), tf.control_dependencies([tf.identity(enqueued)]):
        data = tf.identity(tf.constant(values([ELEMENTS], 1)))
    return x, arrive(data)


def assert_late_kernels_read_what_they_should(graph: Graph, b: AcceleratorTask) -> None:
    """TensorFlow frees a kernel's input when the kernel has been enqueued."""
    b.set("delay_us=30000")
    for _ in range(3):
        chained, arrived = graph.run()
        assert same_bits(chained, -values([ELEMENTS]) * np.float32(0.5**KERNELS))
        assert same_bits(arrived, values([ELEMENTS], 1))
    b.set("delay_us=0")


def test_a_card_does_not_write_to_memory_that_kernels_still_read(both: Clusters) -> None:
    rdma = both["rdma"]
    rdma.set("delay_us=0")

    def build() -> Any:
        return beside_late_kernels(lambda data: computed(B0, computed(A0, data)))

    with Graph(rdma, build) as graph:
        graph.run()
        assert_late_kernels_read_what_they_should(graph, tasks(rdma)[1])


def test_the_kernel_may_find_memory_by_its_address() -> None:
    """As with nvidia_peermem, where memory cannot be registered as a DMA-BUF."""
    fake = "peer_memory=1;fail=reg_dmabuf_mr:1:EOPNOTSUPP"
    given = exporting(fake=fake, GPU_DIRECT="on")
    with AcceleratorCluster(JOBS, "rdma", given) as cluster, ready(cluster) as graph:
        before = direct_bytes(cluster)
        run(graph, LARGE)
        assert direct_bytes(cluster) > before
        for task in tasks(cluster):
            direct = task.stats()["direct"]
            assert (direct["registrations"] > 0, direct["refused"]) == (True, 0)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"fake": "fail=reg_dmabuf_mr:1:ENOMEM"}, True),
        ({"fabric": "auto"}, False),  # shared memory, which no card reads
        ({"GPU_DIRECT": "off"}, False),
        ({"CHECKSUM": "on"}, False),
    ],
    ids=["refused", "one_host", "off", "checksum"],
)
def test_otherwise_tensors_are_copied(given: dict[str, str], refused: bool) -> None:
    with AcceleratorCluster(JOBS, "rdma", exporting(**given)) as cluster, ready(cluster) as graph:
        run(graph, LARGE)
        copied = sum(task.stats()["device_copied_bytes"] for task in tasks(cluster))
        assert copied > 0
        assert refused or direct_bytes(cluster) == 0
        assert all((task.stats()["direct"]["refused"] > 0) == refused for task in tasks(cluster))


def test_on_requires_a_driver_that_exports_memory() -> None:
    given = exporting(GPU_DIRECT="on") | {CUDA: "/nowhere/libcuda.so.1"}
    with pytest.raises(Exception, match=r"RDMA_TRANSPORT_GPU_DIRECT=on, but .*/nowhere"):
        AcceleratorCluster(JOBS, "rdma", given)


def test_a_task_killed_amid_direct_transfers() -> None:
    with AcceleratorCluster(JOBS, "rdma", exporting(fake="delay_us=3000")) as cluster:
        with ready(cluster):
            pass
        a, b = tasks(cluster)
        with Graph(cluster, endless) as graph:
            step = Background(graph)
            moved = direct_bytes(cluster)
            assert eventually(lambda: direct_bytes(cluster) > moved + 5_000_000, 20)
            b.signal(signal.SIGKILL)
            assert step.seconds_after(time.monotonic(), 30) < 1 + patient(SLACK)
            assert isinstance(step.error, tf.errors.UnavailableError), step.error
            assert "/job:b/replica:0/task:0" in str(step.error)
        assert eventually(lambda: a.stats()["outstanding_tensors"] == 0)
        assert eventually(lambda: a.count()["pending"] == 0)
        cluster.restart("b", 0)
        with works_at_last(cluster) as graph:
            run(graph, LARGE)


def test_a_step_that_ends_amid_direct_transfers() -> None:
    given = exporting(fake="retry_ms=20000")
    with AcceleratorCluster(JOBS, "rdma", given) as cluster, ready(cluster) as graph:
        run(graph, LARGE)
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
