"""The mode of a crossing tensor, by its type, its shape and the available memory."""

from typing import Any

import pytest
import tensorflow as tf

from graph_analyzer import analyze
from tests.support.planned import INLINE, PS, SIDE, W0, W1, feed, only_edge, plan_of, use

pytestmark = pytest.mark.timeout(60)

WIDTHS = {
    **dict.fromkeys([tf.bool, tf.int8, tf.uint8, tf.qint8, tf.quint8], 1),
    **dict.fromkeys([tf.float16, tf.bfloat16, tf.int16, tf.uint16, tf.qint16, tf.quint16], 2),
    **dict.fromkeys([tf.float32, tf.int32, tf.uint32, tf.qint32], 4),
    **dict.fromkeys([tf.float64, tf.int64, tf.uint64, tf.complex64], 8),
    tf.complex128: 16,
    # two of four bits are not packed into one byte in a tensor
    **dict.fromkeys([tf.dtypes.experimental.int4, tf.dtypes.experimental.uint4], 1),
    tf.dtypes.experimental.float8_e5m2: 1,
    tf.dtypes.experimental.float8_e4m3fn: 1,
}


@pytest.mark.parametrize("dtype", WIDTHS, ids=lambda dtype: dtype.name)
def test_numbers_have_a_place_of_their_size(dtype: tf.DType) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed([3, 5000], dtype)
        use(tensor)

    edge = only_edge(build)
    assert (edge.mode, edge.dtype, edge.shape) == ("static", dtype.name, (3, 5000))
    assert edge.bytes == 15000 * WIDTHS[dtype]


@pytest.mark.parametrize("dtype", [tf.string, tf.variant], ids=lambda dtype: dtype.name)
def test_what_has_no_plain_bytes_is_unsupported(dtype: tf.DType) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed([3], dtype)
        use(tensor)

    edge = only_edge(build)
    assert (edge.mode, edge.dtype, edge.bytes) == ("grpc", dtype.name, None)
    assert dtype.name in edge.reason
    assert (edge.slots, edge.slot_bytes) == (0, 0)


def test_a_handle_of_a_resource_is_unsupported() -> None:
    def build() -> None:
        with tf.device(PS):
            queue = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32])
            both = tf.raw_ops.IdentityN(input=[queue, tf.constant(1.0)])
        with tf.device(W0):
            tf.raw_ops.IdentityN(input=[both[0]])

    edge = only_edge(build)
    assert (edge.mode, edge.dtype, edge.bytes) == ("grpc", "resource", None)
    assert "resource" in edge.reason


@pytest.mark.parametrize("shape", [None, [None], [SIDE, None], [None, SIDE, 2]])
def test_a_shape_that_only_the_step_knows_is_dynamic(shape: Any) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed(shape)
        use(tensor)

    edge = only_edge(build)
    assert (edge.mode, edge.bytes, edge.slots) == ("dynamic", None, 0)
    assert edge.shape == (None if shape is None else tuple(shape))
    assert "shape" in edge.reason


@pytest.mark.parametrize(
    ("size", "expected"), [(0, "inline"), (1, "inline"), (4096, "inline"), (4097, "static")]
)
def test_the_inline_limit_is_the_last_size_that_rides_inline(size: int, expected: str) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed([size], tf.uint8)
        use(tensor)

    edge = only_edge(build)
    assert (edge.mode, edge.bytes, edge.control) == (expected, size, False)
    assert edge.slots >= 2 if expected == "static" else edge.slots == 0


@pytest.mark.parametrize("elements", [2**61, 2**62, 2**60 + 1])
def test_sizes_near_the_end_of_the_integers_do_not_fit(elements: int) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed([elements])
        use(tensor)

    edge = only_edge(build)
    assert edge.mode == "dynamic"
    assert (edge.slots, edge.slot_bytes) == (0, 0)


def test_shapes_follow_from_constants() -> None:
    # the second argument of Reshape and of Fill is a value, not a shape
    def build() -> None:
        with tf.device(PS):
            dims = tf.concat([[16], tf.constant([32, 8])], 0)
            use(tf.reshape(feed([None]), dims))
            use(tf.fill(dims * 2, 1.0))

    assert {edge.shape for edge in plan_of(build).tensors} == {(16, 32, 8), (32, 64, 16)}


# --- Memory ---


def three_sizes() -> None:
    for index, kib in enumerate((256, 64, 128)):
        with tf.device(PS):
            tensor = feed([kib * 1024], tf.uint8, f"k{kib}")
        use(tensor, (W0, W0, W1)[index])


KIB = 1024


@pytest.mark.parametrize(
    ("limit", "left_out"),
    [
        (2 * (64 + 128 + 256) * KIB, set()),
        (2 * (64 + 128 + 256) * KIB - 1, {"k256:0"}),  # PS sends all three
        (2 * (64 + 128) * KIB, {"k256:0"}),
        (2 * (64 + 128) * KIB - 1, {"k128:0", "k256:0"}),
        (2 * 64 * KIB - 1, {"k64:0", "k128:0", "k256:0"}),
        (0, {"k64:0", "k128:0", "k256:0"}),
    ],
)
def test_what_does_not_fit_is_left_out_the_largest_first(limit: int, left_out: set[str]) -> None:
    plan = plan_of(three_sizes, arena_limit=limit)
    assert plan.arena_limit == limit
    assert {edge.name for edge in plan.of_mode("dynamic")} == left_out
    assert len(plan.of_mode("static")) == 3 - len(left_out)
    for edge in plan.of_mode("dynamic"):
        assert (edge.slots, edge.slot_bytes) == (0, 0)
        assert edge.bytes is not None
        assert "did not fit" in edge.reason
        assert "RDMA_TRANSPORT_ARENA_SIZE" in edge.reason
    for task in plan.tasks:
        came = [edge for edge in plan.of_mode("static") if edge.destination == task.name]
        assert task.slot_bytes == sum(edge.slot_bytes // edge.slots for edge in came)
        assert task.slot_bytes + task.source_bytes <= limit


def test_the_receivers_memory_counts_too() -> None:
    # three senders with two buffers of 100 KiB each, one receiver that has room for two slots
    graph = tf.Graph()
    with graph.as_default():
        for task in (PS, W0, "/job:worker/task:2"):
            with tf.device(task):
                tensor = feed([100 * KIB], tf.uint8)
            use(tensor, W1)
    plan = analyze(graph, "ps=1,worker=3", arena_limit=2 * 100 * KIB, inline_limit=INLINE)
    assert len(plan.of_mode("static")) == 2
    (edge,) = plan.of_mode("dynamic")
    assert W1 in edge.reason
