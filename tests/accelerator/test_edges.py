"""What arrives is what was sent, from and to memory of accelerators: as over gRPC, bit for bit."""

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.accelerator.conftest import JOBS
from tests.support.accelerators import AcceleratorCluster, AcceleratorTask, Clusters
from tests.support.graphs import A, B, Graph, assert_equal_over_both, same_bits, v1
from tests.support.observing import repeated
from tests.support.profiles import collect

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("accelerators")]

A_CPU, B_CPU = A + "/device:CPU:0", B + "/device:CPU:0"
A0, A1 = A + "/device:PRETEND:0", A + "/device:PRETEND:1"
B0, B1 = B + "/device:PRETEND:0", B + "/device:PRETEND:1"
EDGES = {
    "cpu_to_accelerator": (A_CPU, B0),
    "accelerator_to_accelerator": (A0, B0),
    "accelerator_to_cpu": (A0, B_CPU),
    "second_to_first": (A1, B0),
    "back": (B1, A_CPU),
}
SHAPES: list[list[int]] = [
    [], [0], [1], [7], [3, 0, 5], [255], [1023], [1025], [128, 128], [16385], [2, 3, 5, 7, 11],
    [300, 301], [2**20 + 3],
]  # fmt: skip
DTYPES = [
    tf.float16, tf.float32, tf.float64, tf.bfloat16, tf.int8, tf.int16, tf.int32, tf.int64,
    tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.bool, tf.complex64, tf.complex128,
]  # fmt: skip


def values(shape: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def at(device: str, tensor: Any) -> Any:
    with tf.device(device):
        return tf.identity(tensor)


def computed(device: str, tensor: Any) -> Any:
    """Allocated by a kernel of the device, which has a kernel of its own for this."""
    with tf.device(device):
        return tf.negative(tensor)


def tasks(cluster: AcceleratorCluster) -> tuple[AcceleratorTask, AcceleratorTask]:
    a, b = cluster["a", 0], cluster["b", 0]
    assert isinstance(a, AcceleratorTask)
    assert isinstance(b, AcceleratorTask)
    return a, b


@pytest.mark.parametrize("edge", EDGES)
def test_every_shape(clusters: Clusters, edge: str) -> None:
    source, destination = EDGES[edge]

    def build() -> Any:
        sent = [computed(source, tf.constant(values(shape, i))) for i, shape in enumerate(SHAPES)]
        return [computed(destination, tensor) for tensor in sent]

    results = assert_equal_over_both(clusters, build, steps=2)
    for result in results:
        for i, shape in enumerate(SHAPES):
            assert same_bits(result[i], values(shape, i))


def test_from_a_device_to_a_kernel_that_reads_in_the_hosts_memory(clusters: Clusters) -> None:
    def build() -> Any:
        sent = [computed(A0, tf.constant(values([n], n))) for n in (5000, 2**20 + 3)]
        with tf.device(B0):
            read = [tf.abs(tensor) for tensor in sent]
        return [computed(A_CPU, tensor) for tensor in read]

    for result in assert_equal_over_both(clusters, build, steps=4):
        for got, n in zip(result, (5000, 2**20 + 3), strict=True):
            assert same_bits(got, -np.abs(values([n], n)))


def test_a_kernel_of_an_accelerator_that_computes_in_the_hosts_memory(both: Clusters) -> None:
    """Of int32. It gets a slice of what a processor received, and writes its result there."""

    def build() -> Any:
        with tf.device(A_CPU):
            sent = tf.range(300_000) + 1
        with tf.device(B_CPU):
            received = tf.identity(sent)
        with tf.device(B0):
            changed = tf.slice(received, [4096], [100_000]) + tf.constant(1)
        return [at(B_CPU, changed)]

    assert_equal_over_both(both, build, steps=2)


def test_a_list_of_tensors(over_grpc: AcceleratorCluster) -> None:
    """A variant has no plain bytes. The device copies the tensors that it consists of."""

    def build() -> Any:
        with tf.device(A_CPU):
            listed = tf.raw_ops.TensorListFromTensor(
                tensor=tf.constant(values([4, 3000])), element_shape=[3000]
            )
        with tf.device(B0):
            return tf.negative(
                tf.raw_ops.TensorListStack(
                    input_handle=listed, element_shape=[3000], element_dtype=tf.float32
                )
            )

    # The fabric carries no variants.
    with AcceleratorCluster(JOBS, "rdma", {"RDMA_TRANSPORT_FALLBACK": "allow"}) as rdma:
        assert_equal_over_both({"grpc": over_grpc, "rdma": rdma}, build, steps=3)


def test_every_type(clusters: Clusters) -> None:
    """Of int32, Identity's tensors are in host memory on accelerators, too."""

    def build() -> Any:
        fetched = []
        for dtype in DTYPES:
            for count in (3, 5000):
                plain = np.random.default_rng(count).integers(0, 2, [count])
                sent = at(A0, tf.constant(plain.astype(dtype.as_numpy_dtype)))
                fetched += [at(B_CPU, sent), at(A_CPU, at(B0, sent))]
        return fetched

    assert_equal_over_both(clusters, build)


def test_one_tensor_for_several_devices(clusters: Clusters) -> None:
    def build() -> Any:
        sent = computed(A0, tf.constant(values([40_000])))
        return [computed(device, sent) for device in (B0, B1, B_CPU, A1, B0)]

    assert_equal_over_both(clusters, build, steps=3)


def test_values_that_change_in_each_step(clusters: Clusters) -> None:
    """A slot, or a staged copy, is not reused before the device has read it."""

    def build() -> Any:
        scale = v1.placeholder(tf.float32, [], "scale")
        fetched = []
        for i, count in enumerate((100, 20_000, 400_000)):
            with tf.device(A0):
                x = tf.constant(values([count], i)) * scale
            with tf.device(B1):
                y = tf.square(x)
            with tf.device(A1):
                z = y - x
            fetched += [computed(B_CPU, z), computed(B0, z)]
        return fetched

    assert_equal_over_both(clusters, build, feeds=("scale:0", np.arange(1, 9, dtype=np.float32)))


def test_shapes_that_change_in_each_step(clusters: Clusters) -> None:
    def build() -> Any:
        n = v1.placeholder(tf.int32, [], "n")
        with tf.device(A_CPU):
            data = tf.cast(tf.range(n), tf.float32) * 0.5
        sent = computed(A0, data)
        return [computed(B0, sent), at(B_CPU, sent), computed(B1, data)]

    sizes = [0, 1, 100, 5000, 3, 300_000, 1024, 1025, 0, 70_000]
    results = assert_equal_over_both(clusters, build, feeds=("n:0", sizes))
    assert [len(result[0]) for result in results] == sizes


def test_sources_are_freed_and_overwritten_right_after_the_send(clusters: Clusters) -> None:
    """Their memory is that of the next results, which the device computes at once."""

    def build() -> Any:
        with tf.device(A0):
            x = tf.constant(values([30_000]))
            sent = []
            for _ in range(10):
                x = tf.square(x) * 1.5 + 0.25
                sent.append(tf.negative(x))
        return [computed(B0 if i % 2 else B_CPU, tensor) for i, tensor in enumerate(sent)]

    assert_equal_over_both(clusters, build, steps=3)


def test_a_variable_that_is_assigned_after_the_send(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A0):
            variable = v1.get_variable("v", initializer=values([30_000]), use_resource=True)
            before = variable.read_value()
            product = before * 1.25
        with tf.control_dependencies([before]), tf.device(A0):
            assigned = variable.assign(product)
        with tf.device(B0):
            there = tf.negative(before)
        with tf.control_dependencies([assigned]):
            return [at(B_CPU, before), there, variable.read_value()]

    assert_equal_over_both(clusters, build, steps=4)


def test_a_variable_that_is_assigned_what_was_received(clusters: Clusters) -> None:
    def build() -> Any:
        scale = v1.placeholder(tf.float32, [], "scale")
        with tf.device(A_CPU):
            sent = tf.constant(values([30_000])) * scale
        with tf.device(B0):
            variable = v1.get_variable("w", initializer=values([30_000]), use_resource=True)
            assigned = variable.assign(sent)
        with tf.control_dependencies([assigned]), tf.device(B0):
            kept = variable.read_value()
        return [at(A0, kept), tf.identity(assigned)]

    assert_equal_over_both(clusters, build, feeds=("scale:0", [1.0, 2.0, 0.5]))


def test_a_loop_over_accelerators(clusters: Clusters) -> None:
    def build() -> Any:
        v1.disable_control_flow_v2()

        def body(i: Any, x: Any, y: Any) -> Any:
            with tf.device(B0):
                there = x * 0.75 + y
            with tf.device(A1):
                back = tf.square(there)
            with tf.device(B_CPU):
                beside = there - 0.5
            with tf.device(A_CPU):
                return i + 1, back, beside

        with tf.device(A_CPU):
            start = tf.constant(values([5000]))
            return v1.while_loop(lambda i, *_: i < 8, body, [tf.constant(0), start, start])

    assert_equal_over_both(clusters, build, steps=2)


def test_branches_not_taken_are_dead_on_accelerators(clusters: Clusters) -> None:
    def build() -> Any:
        v1.disable_control_flow_v2()
        with tf.device(A_CPU):
            flag = v1.placeholder(tf.bool, [], name="flag")
        data = computed(A0, tf.constant(values([20_000])))
        small = computed(A0, tf.constant(values([20])))

        def there(device: str) -> Any:
            with tf.device(device):
                return data * 2.0, tf.square(small)

        with tf.device(A_CPU):
            return v1.cond(flag, lambda: there(B0), lambda: there(B_CPU))

    assert_equal_over_both(clusters, build, feeds=("flag:0", [True, False, False, True]))


def test_host_memory_of_accelerator_operations(clusters: Clusters) -> None:
    """Shape's output and Reshape's second input are in host memory."""

    def build() -> Any:
        n = v1.placeholder(tf.int32, [], "n")
        with tf.device(A_CPU):
            data = tf.cast(tf.range(n), tf.float32)
        with tf.device(A0):
            shape = tf.shape(tf.negative(data))
            wide = tf.shape(tf.negative(data), out_type=tf.int64)
        on_device = at(A0, at(A_CPU, wide))  # for int64, Identity's tensors are in device memory
        with tf.device(B1):
            reshaped = tf.negative(tf.reshape(data, tf.identity(shape)))
            again = tf.reshape(reshaped, on_device)
            back = tf.shape(again)
        return [at(B_CPU, shape), at(B0, wide), reshaped, again, at(A_CPU, back), at(A0, back)]

    assert_equal_over_both(clusters, build, feeds=("n:0", [6, 0, 70_000]))


def test_steps_of_several_sessions_at_once(clusters: Clusters) -> None:
    def build() -> Any:
        scale = v1.placeholder(tf.float32, [], "scale")
        with tf.device(A0):
            x = tf.constant(values([20_000])) * scale
        with tf.device(B0):
            y = tf.square(x)
        with tf.device(A1):
            z = y - x
        return [computed(B_CPU, z), computed(B1, z)]

    def results(cluster: AcceleratorCluster) -> dict[float, Any]:
        got: dict[float, Any] = {}
        with Graph(cluster, build) as one, Graph(cluster, build) as two:
            # Making kernels, TensorFlow copies constants into memory that other steps still read.
            for graph in (one, two):
                graph.run(feed={graph.graph.get_tensor_by_name("scale:0"): 0.0})

            def work(worker: int) -> None:
                graph = (one, two)[worker % 2]
                feed = graph.graph.get_tensor_by_name("scale:0")
                for step in range(6):
                    scale = worker + step / 8
                    got[scale] = graph.run(feed={feed: scale})

            threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return got

    over_grpc, over_rdma = results(clusters["grpc"]), results(clusters["rdma"])
    assert len(over_rdma) == len(over_grpc) == 24
    assert all(same_bits(over_grpc[key], over_rdma[key]) for key in over_grpc)


def test_each_side_copies_once(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A0):
            sources = [
                v1.get_variable(f"source{i}", initializer=values([count], i), use_resource=True)
                for i, count in enumerate((100, 5000, 300_000))
            ]
            sent = [tf.negative(source.read_value()) for source in sources]
        return tf.group(*[computed(B0, tensor) for tensor in sent])

    bytes_each = 4 * (100 + 5000 + 300_000)
    copies = 3 * 3
    for cluster in clusters.values():
        a, b = tasks(cluster)
        with Graph(cluster, build) as graph:
            graph.run()
            before = a.count(), b.count()
            for _ in range(3):
                graph.run()
            after = a.count(), b.count()
        done_a, done_b = (
            {name: new[name] - old[name] for name in new}
            for old, new in zip(before, after, strict=True)
        )
        assert (done_a["dtoh_copies"], done_a["dtoh_bytes"]) == (copies, 3 * bytes_each)
        assert (done_b["htod_copies"], done_b["htod_bytes"]) == (copies, 3 * bytes_each)
        assert done_a["htod_copies"] == done_b["dtoh_copies"] == 0
        assert done_a["dtod_copies"] == done_b["dtod_copies"] == 0


def test_the_profiler_shows_the_copies(both: Clusters) -> None:
    def build() -> Any:
        with tf.device(A0):
            sent = tf.negative(v1.get_variable("source", initializer=values([5000])).read_value())
        return tf.group(computed(B0, sent))

    cluster = both["rdma"]
    with Graph(cluster, build) as graph, repeated(graph.run):
        profiles = collect(
            [cluster.target("a"), cluster.target("b")],
            lambda found: all("rdma copy" in each for each in found),
        )
    shown = {
        (name, event.values["direction"], event.values["bytes"])
        for each in profiles
        for name in ("rdma send", "rdma receive")
        if name in each
        for event in each["rdma copy"]
    }
    assert shown == {("rdma send", "to host", 20_000), ("rdma receive", "to device", 20_000)}
