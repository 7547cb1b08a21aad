"""What arrives is what was sent: the same graph over gRPC and over rdma gives the same bits."""

import functools
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.support.cluster import Cluster
from tests.support.graphs import A, B, C, Graph, assert_equal_over_both, same_bits, v1

pytestmark = pytest.mark.timeout(120)

DTYPES = [
    tf.float16, tf.float32, tf.float64, tf.bfloat16, tf.dtypes.experimental.float8_e5m2,
    tf.dtypes.experimental.float8_e4m3fn, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8,
    tf.uint16, tf.uint32, tf.uint64, tf.dtypes.experimental.int4, tf.dtypes.experimental.uint4,
    tf.bool, tf.complex64, tf.complex128, tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32,
]  # fmt: skip
SIZES = [0, 1, 3, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 4095, 4096, 4097, 16384, 65537, 262145]
Clusters = dict[str, Cluster]


def values(dtype: tf.DType, shape: list[int], seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if dtype == tf.bool:
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.is_quantized:
        return generator.integers(0, 100, shape).astype(dtype.as_numpy_dtype)
    if dtype.size == 1:
        return generator.integers(0, 7, shape).astype(dtype.as_numpy_dtype)
    array = generator.integers(0, 30000, shape).astype(dtype.as_numpy_dtype)
    return array + 1j * array[::-1] if dtype.is_complex else array


def across(tensor: Any, there: str = B) -> Any:
    """Sends `tensor` to another task and its value back."""
    with tf.device(there):
        return tf.identity(tensor)


@st.composite
def tensor_specs(draw: st.DrawFn) -> tuple[tf.DType, list[int], int]:
    size = draw(st.sampled_from(SIZES))
    shape = draw(st.sampled_from([[size], [size, 1], [1, size], [size, 2]] + ([[]] * (size == 1))))
    return draw(st.sampled_from(DTYPES)), shape, draw(st.integers(0, 2**31))


@settings(max_examples=12, suppress_health_check=list(HealthCheck), derandomize=True)
@given(specs=st.lists(tensor_specs(), min_size=8, max_size=24))
def test_every_type_and_shape(clusters: Clusters, specs: list[Any]) -> None:
    def build() -> Any:
        fetched = []
        for dtype, shape, seed in specs:
            with tf.device(A):
                # Through a placeholder-like op, so that nothing is folded away.
                source = tf.identity(tf.constant(values(dtype, shape, seed), dtype))
            with tf.device(B):
                there = tf.identity(source)
            with tf.device(A):
                fetched.append(tf.identity(there))
        return fetched

    results = assert_equal_over_both(clusters, build)
    for (dtype, shape, seed), got in zip(specs, results[0], strict=True):
        assert got.tobytes() == values(dtype, shape, seed).tobytes()
        assert list(got.shape) == shape


def test_every_type_at_least_once(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A):
            sources = [tf.identity(tf.constant(values(d, [5000], 1), d)) for d in DTYPES]
        return [across(source) for source in sources]

    assert_equal_over_both(clusters, build)


def test_fan_out_to_several_tasks_and_consumers(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A):
            source = tf.random.uniform([300, 300], seed=3)
        parts = []
        for task in (B, C, B):
            with tf.device(task):
                parts += [tf.negative(source), tf.reduce_sum(source, 1), source * 2.0]
        with tf.device(C):
            return [tf.add_n([p for p in parts if p.shape.rank == 2]), *parts]

    assert_equal_over_both(clusters, build, steps=3)


def test_control_edges_order_what_tasks_do(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A):
            counter = v1.get_variable("counter", initializer=1.0, use_resource=True)
        with tf.device(B):
            other = v1.get_variable("other", initializer=np.ones([3000], np.float32))
            first = v1.assign(other, across(counter) * other)
        with tf.control_dependencies([first]), tf.device(A):
            second = counter.assign_add(1.0)
        with tf.control_dependencies([second]), tf.device(B):
            return [tf.identity(other), across(counter)]

    assert_equal_over_both(clusters, build, steps=4)


def test_while_loop_across_tasks(clusters: Clusters) -> None:
    def build() -> Any:
        v1.disable_control_flow_v2()

        def body(i: Any, x: Any) -> Any:
            with tf.device(B):
                y = x * 1.5 + 1.0
            with tf.device(C):
                z = tf.reverse(y, [0])
            with tf.device(A):
                return i + 1, z

        with tf.device(A):
            start = tf.random.uniform([5000], seed=1)
            return v1.while_loop(lambda i, _: i < 10, body, [tf.constant(0), start])

    assert_equal_over_both(clusters, build, steps=2)


def test_branches_not_taken_are_dead_on_other_tasks(clusters: Clusters) -> None:
    def build() -> Any:
        v1.disable_control_flow_v2()
        with tf.device(A):
            flag = v1.placeholder(tf.bool, [], name="flag")
            data = tf.random.uniform([2000], seed=2)

        def there(factor: float, task: str) -> Any:
            with tf.device(task):
                return data * factor

        with tf.device(A):
            return v1.cond(flag, lambda: there(2.0, B), lambda: there(3.0, C))

    assert_equal_over_both(clusters, build, feeds=("flag:0", [True, False, False, True]))


def test_shapes_that_change_between_steps(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A):
            n = v1.placeholder(tf.int32, [], name="n")
            data = tf.cast(tf.range(n), tf.float32) * 0.5
        return [across(data), across(tf.reshape(data, [1, -1]), C)]

    sizes = [0, 1, 100, 5000, 3, 300000, 1024, 1025, 0, 70000]
    results = assert_equal_over_both(clusters, build, feeds=("n:0", sizes))
    assert [len(r[0]) for r in results] == sizes


@pytest.mark.parametrize("use_resource", [False, True])
def test_a_source_overwritten_right_after_the_send(clusters: Clusters, use_resource: bool) -> None:
    """The value received is the value at the send, also where TensorFlow overwrites in place."""

    def build() -> Any:
        with tf.device(A):
            variable = v1.get_variable(
                f"v{use_resource}", initializer=np.zeros([40000], np.float32),
                use_resource=use_resource,
            )  # fmt: skip
            before = variable.read_value() if use_resource else tf.identity(variable)
        with tf.control_dependencies([before]), tf.device(A):
            overwritten = v1.assign_add(variable, np.ones([40000], np.float32))
        with tf.device(B):
            # The consumer looks as late as it can.
            delay = tf.reduce_sum(tf.linalg.matmul(tf.ones([300, 300]), tf.ones([300, 300])))
            with tf.control_dependencies([delay]):
                seen = before + 0.0 * delay
                return [tf.reduce_max(seen), tf.reduce_min(seen), tf.identity(overwritten)[:1]]

    if use_resource:
        results = assert_equal_over_both(clusters, build, steps=4)
        assert [r[0] for r in results] == [0.0, 1.0, 2.0, 3.0]
        return
    # Over gRPC a reference variable is read when it is asked for, so gRPC is no oracle here; what
    # one step sees must be one value throughout.
    with Graph(clusters["rdma"], build) as graph:
        for _ in range(10):
            high, low, _ = graph.run()
            assert high == low


def test_slices_of_what_was_received_are_not_written_in_place(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A):
            source = tf.random.uniform([64, 1024], seed=9)
        with tf.device(B):
            received = tf.identity(source)
            part = tf.slice(received, [8, 0], [40, 1024])
            chain = tf.exp(tf.negative(tf.negative(part)))
            rows = [tf.sqrt(tf.abs(row)) for row in tf.split(received, 4)]
        with tf.device(A):
            return [tf.identity(chain), *rows, source + 0.0]

    assert_equal_over_both(clusters, build, steps=5)


def test_an_empty_tensor_beside_a_reference_variable(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A):
            variable = v1.get_variable("v", [3], use_resource=False)
            with tf.control_dependencies([v1.assign_add(variable, [1.0, 2.0, 3.0])]):
                empty = tf.identity(tf.zeros([0], tf.float16))
        with tf.device(B):
            return tf.identity(empty)

    assert_equal_over_both(clusters, build, steps=3)


def test_tensors_bounced_between_tasks(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A):
            x = tf.random.uniform([50000], seed=4)
            start = x + 0.0
        for i in range(12):
            with tf.device([B, C, A, B][i % 4]):
                x = tf.identity(x)
        with tf.device(A):
            return [tf.identity(x), start]

    for bounced, start in assert_equal_over_both(clusters, build, steps=3):
        assert same_bits(bounced, start)


# TensorFlow divides each of these kernels among threads, and the order of additions depends on the
# division. Whether other threads take part is decided anew in each step, by the times before. Each
# kernel but the last one works on a tensor that has just arrived alone.
def test_sums_do_not_depend_on_who_computes_them(clusters: Clusters) -> None:
    kernels = [
        lambda x: tf.reduce_sum(x, 0, keepdims=True) * 1e-3 + x,
        tf.nn.softmax,
        lambda x: x + tf.reduce_sum(x),
        lambda x: x - tf.reduce_mean(x, 1, keepdims=True),
        lambda x: tf.cumsum(x, 1),
        lambda x: tf.nn.l2_loss(x) + tf.tanh(x),
    ]

    def build() -> Any:
        with tf.device(A):
            x = tf.identity(values(tf.float32, [512, 512], 3) / np.float32(7))
        for hop, kernel in enumerate(kernels):
            with tf.device(A if hop % 2 else B):
                x = kernel(x)
        with tf.device(A):
            return x, tf.reduce_sum(x)

    first, *others = assert_equal_over_both(clusters, build, steps=60)
    assert all(same_bits(first, other) for other in others)


def test_a_variable_that_was_assigned_a_received_tensor_is_its_own(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A):
            source = tf.random.uniform([30000], seed=5)
        with tf.device(B):
            variable = v1.get_variable("own", [30000], use_resource=True)
            assigned = variable.assign(source)
            with tf.control_dependencies([assigned]):
                added = variable.assign_add(tf.ones([30000]))
        with tf.control_dependencies([added]):
            with tf.device(A):
                unchanged = tf.identity(source)
            with tf.device(B):
                return [variable.read_value(), unchanged, across(variable, C)]

    for changed, unchanged, elsewhere in assert_equal_over_both(clusters, build, steps=3):
        assert same_bits(changed, unchanged + np.float32(1))
        assert same_bits(changed, elsewhere)


def test_strings_and_lists_cross_as_they_always_did(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A):
            strings = tf.strings.as_string(tf.random.uniform([300], seed=6))
            tensors = tf.raw_ops.TensorListFromTensor(
                tensor=tf.random.uniform([4, 3000], seed=7), element_shape=[3000]
            )
        with tf.device(B):
            stacked = tf.raw_ops.TensorListStack(
                input_handle=tensors, element_shape=[3000], element_dtype=tf.float32
            )
            return [across(strings), tf.strings.length(strings), stacked]

    assert_equal_over_both(clusters, build, steps=2)


def test_several_sessions_and_steps_at_once(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A):
            seed = v1.placeholder(tf.int32, [2], name="seed")
            data = tf.random.stateless_uniform([20000], seed)
        with tf.device(B):
            there = data * 2.0
        with tf.device(C):
            return [tf.reduce_sum(there), tf.identity(data), there[:10]]

    def results(cluster: Cluster) -> dict[tuple[int, int], Any]:
        got: dict[tuple[int, int], Any] = {}
        with Graph(cluster, build) as one, Graph(cluster, build) as two:

            def work(worker: int) -> None:
                graph = one if worker % 2 else two
                feed = graph.graph.get_tensor_by_name("seed:0")
                for step in range(15):
                    got[worker, step] = graph.run(feed={feed: [worker, step]})

            threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return got

    over_grpc, over_rdma = results(clusters["grpc"]), results(clusters["rdma"])
    assert over_grpc.keys() == over_rdma.keys()
    assert len(over_rdma) == 90
    assert all(same_bits(over_grpc[key], over_rdma[key]) for key in over_grpc)


def test_tensors_beyond_two_and_four_gibibytes() -> None:
    def build(length: int) -> Any:
        with tf.device(A):
            big = tf.range(length, dtype=tf.int32)
        with tf.device(B):
            return [tf.size(big, tf.int64), big[-7:], big[length // 2 : length // 2 + 5]]

    # A busy machine takes its time to provide, and to map, that much memory.
    with Cluster({"a": 1, "b": 1}, environment={"RDMA_TRANSPORT_PEER_TIMEOUT": "60s"}) as cluster:
        for gibibytes in (4, 2):  # the smaller one finds the larger one's memory
            length = gibibytes * 2**30 // 4 + 5
            with Graph(cluster, functools.partial(build, length)) as graph:
                size, end, middle = graph.run()
            assert size == length
            assert end.tolist() == list(range(length - 7, length))
            assert middle.tolist() == list(range(length // 2, length // 2 + 5))
        sent = cluster["a", 0].stats()["sent"]["static"]
        assert (sent["tensors"], sent["bytes"]) == (2, 6 * 2**30 + 2 * 20)
