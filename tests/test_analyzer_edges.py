"""Small graphs whose plan can be told by looking at them.

All are placed by hand on a server PS and two workers; what must cross is said at each. The classes
and sizes follow from the dtype and the shape, the allocation site from which kernel allocates and
which operations hand a buffer on.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_analyzer import AnalysisError, Edge, Plan, Site, analyze

pytestmark = pytest.mark.timeout(60)
v1 = tf.compat.v1
PS, W0, W1 = TASKS = ("/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1")
CLUSTER = "ps=1,worker=2"
INLINE = 4096
SIDE = 64
MATRIX = SIDE * SIDE * 4  # bytes of float32


def plan_of(build: Callable[[], Any], **options: Any) -> Plan:
    graph = tf.Graph()
    with graph.as_default():
        build()
    return analyze(graph, CLUSTER, **({"inline_limit": INLINE, "arena_limit": "8GiB"} | options))


def only_edge(build: Callable[[], Any], **options: Any) -> Edge:
    plan = plan_of(build, **options)
    assert len(plan.edges) == 1, plan.edges
    return plan.edges[0]


def feed(shape: Any = (SIDE, SIDE), dtype: Any = tf.float32, name: str = "x") -> Any:
    return v1.placeholder(dtype, shape, name)


def product(name: str = "m") -> Any:
    """A matrix that is born in a kernel and is nobody else's."""
    return tf.matmul(feed(name=f"{name}_a"), feed(name=f"{name}_b"), name=name)


def use(tensor: Any, task: str = W0) -> Any:
    with tf.device(task):
        return tf.identity(tensor, name="use")


def links(edges: Any) -> Counter[tuple[str, str]]:
    return Counter((edge.source, edge.destination) for edge in edges)


# ---------------------------------------------------------------- classes, dtypes, shapes

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
    assert (edge.edge_class, edge.dtype, edge.shape) == ("static", dtype.name, (3, 5000))
    assert edge.bytes == 15000 * WIDTHS[dtype]


@pytest.mark.parametrize("dtype", [tf.string, tf.variant], ids=lambda dtype: dtype.name)
def test_what_has_no_plain_bytes_is_unsupported(dtype: tf.DType) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed([3], dtype)
        use(tensor)

    edge = only_edge(build)
    assert (edge.edge_class, edge.dtype, edge.bytes) == ("unsupported", dtype.name, None)
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
    assert (edge.edge_class, edge.dtype, edge.bytes) == ("unsupported", "resource", None)
    assert "resource" in edge.reason


@pytest.mark.parametrize("shape", [None, [None], [SIDE, None], [None, SIDE, 2]])
def test_a_shape_that_only_the_step_knows_is_dynamic(shape: Any) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed(shape)
        use(tensor)

    edge = only_edge(build)
    assert (edge.edge_class, edge.bytes, edge.slots) == ("dynamic", None, 0)
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
    assert (edge.edge_class, edge.bytes, edge.control) == (expected, size, False)
    assert edge.slots >= 2 if expected == "static" else edge.slots == 0


@pytest.mark.parametrize("elements", [2**61, 2**62, 2**60 + 1])
def test_sizes_near_the_end_of_the_integers_do_not_fit(elements: int) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed([elements])
        use(tensor)

    edge = only_edge(build)
    assert edge.edge_class == "dynamic"
    assert (edge.slots, edge.slot_bytes) == (0, 0)


def test_shapes_follow_from_constants() -> None:
    # the second argument of Reshape and of Fill is a value, not a shape
    def build() -> None:
        with tf.device(PS):
            dims = tf.concat([[16], tf.constant([32, 8])], 0)
            use(tf.reshape(feed([None]), dims))
            use(tf.fill(dims * 2, 1.0))

    assert {edge.shape for edge in plan_of(build).tensors} == {(16, 32, 8), (32, 64, 16)}


# ---------------------------------------------------------------- how many edges


def test_control_dependencies_carry_no_bytes() -> None:
    def build() -> None:
        with tf.device(PS):
            first = tf.no_op("first")
        with tf.device(W0), tf.control_dependencies([first]):
            tf.no_op("second")
            tf.no_op("third")

    plan = plan_of(build)
    (edge,) = plan.control_edges
    assert plan.tensors == ()
    assert (edge.source, edge.destination, edge.bytes, edge.slots) == (PS, W0, 0, 0)
    assert edge.name == "^first"
    assert "control" in edge.reason


def test_a_tensor_without_elements_is_not_a_control_dependency() -> None:
    def build() -> None:
        with tf.device(PS):
            empty = tf.constant([], tf.float32, name="empty")
        use(empty)

    edge = only_edge(build)
    assert not edge.control
    assert (edge.name, edge.shape, edge.bytes) == ("empty:0", (0,), 0)
    assert (edge.edge_class, edge.site.kind) == ("inline", "constant")


def test_a_tensor_goes_once_to_each_task_that_needs_it() -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed()
            tf.negative(tensor)
        for task in (W0, W0, W1, W1, W1):
            use(tensor, task)
        with tf.device(W0):
            tf.add(tensor, tensor)

    plan = plan_of(build)
    assert [edge.name for edge in plan.edges] == ["x:0", "x:0"]
    assert links(plan.edges) == {(PS, W0): 1, (PS, W1): 1}
    tasks = {task.name: (task.sent_bytes, task.received_bytes) for task in plan.tasks}
    assert tasks == {PS: (2 * MATRIX, 0), W0: (0, MATRIX), W1: (0, MATRIX)}


def test_each_output_is_a_tensor_of_its_own() -> None:
    def build() -> None:
        with tf.device(PS):
            parts = tf.split(feed([SIDE, 3 * SIDE]), 3, axis=1, name="parts")
        use(parts[0])
        use(parts[2])
        use(parts[2], W1)

    plan = plan_of(build)
    assert Counter((edge.name, edge.destination) for edge in plan.edges) == Counter(
        [("parts:0", W0), ("parts:2", W0), ("parts:2", W1)]
    )
    assert {(edge.shape, edge.bytes) for edge in plan.edges} == {((SIDE, SIDE), MATRIX)}


def test_a_tensor_that_is_passed_on_by_the_task_that_received_it() -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = product()
        use(use(tensor, W0), W1)

    plan = plan_of(build)
    assert links(plan.edges) == {(PS, W0): 1, (W0, W1): 1}
    assert {edge.edge_class for edge in plan.edges} == {"static"}


def test_names_that_end_like_those_of_the_partitioner() -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed()
            others = [tf.negative(tensor, name=f"x/_{index}") for index in range(6)]
        use(tensor)
        for other in others:
            use(other)

    assert links(plan_of(build).edges) == {(PS, W0): 7}


# ---------------------------------------------------------------- allocation sites


def test_ops_that_hand_their_buffer_on_are_followed_to_the_kernel() -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = tf.reshape(product(), [SIDE * SIDE])
            tensor = tf.expand_dims(tensor, 0)
            tensor = tf.identity(tf.stop_gradient(tensor), name="last")
        use(tensor)

    edge = only_edge(build)
    assert (edge.name, edge.shape, edge.mutability) == ("last:0", (1, SIDE * SIDE), "immutable")
    # in the order that Site promises: from the allocation to the send
    through = ("Reshape", "ExpandDims", "StopGradient", "Identity")
    assert edge.site == Site("m", "MatMul", "kernel", through)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("one", lambda: tf.nn.relu(product(), name="last")),
        ("broadcast", lambda: tf.add(product(), feed([SIDE]), name="last")),
        ("the second", lambda: tf.add(feed([SIDE]), product(), name="last")),
        ("two", lambda: tf.tanh(tf.negative(product()), name="last")),
        ("with an alias", lambda: tf.nn.relu(tf.identity(product()), name="last")),
    ],
)
def test_elementwise_ops_take_the_buffer_that_nobody_else_needs(name: str, made: Any) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = made()
        use(tensor)

    edge = only_edge(build)
    assert edge.name == "last:0"
    assert (edge.site.op, edge.site.type, edge.site.kind) == ("m", "MatMul", "kernel")
    assert edge.site.through


def shared() -> Any:
    tensor = product()
    tf.reduce_sum(tensor)
    return tf.nn.relu(tensor, name="last")


def shared_until_later() -> Any:
    # the sum needs the product after the negation, so its buffer cannot be taken, although each
    # tensor on the way has one consumer
    tensor = product()
    last = tf.negative(tf.identity(tensor), name="last")
    with tf.control_dependencies([last]):
        tf.reduce_sum(tensor)
    return last


def of_variable() -> Any:
    variable = v1.get_variable("v", [SIDE, SIDE], initializer=tf.zeros_initializer())
    return tf.negative(variable.read_value(), name="last")


def of_aliased_variable() -> Any:
    variable = v1.get_variable("v", [SIDE, SIDE], initializer=tf.zeros_initializer())
    return tf.negative(tf.identity(variable.read_value()), name="last")


@pytest.mark.parametrize(
    "made",
    [
        lambda: tf.nn.relu(tf.constant(1.0, shape=[SIDE, SIDE]), name="last"),
        lambda: tf.less(product(), 0.0, name="last"),  # of another type
        lambda: tf.add(feed([SIDE]), feed([SIDE, 1]), name="last"),  # larger than its inputs
        shared,
        shared_until_later,
        of_variable,
        of_aliased_variable,
    ],
    ids=["constant", "type", "shape", "shared", "shared_until_later", "variable", "alias"],
)
def test_elementwise_ops_allocate_where_they_may_not_take(made: Any) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = made()
        use(tensor)

    (edge,) = plan_of(build).edges
    assert edge.name == "last:0"
    assert (edge.site.op, edge.site.kind, edge.site.through) == ("last", "kernel", ())
    assert edge.mutability == "immutable"


@pytest.mark.parametrize(
    ("made", "kind", "kernel"),
    [
        (lambda: tf.constant(1.0, shape=[SIDE, SIDE], name="x"), "constant", "Const"),
        (lambda: feed(name="x"), "feed", "Placeholder"),
        (lambda: tf.reshape(feed(name="x"), [SIDE**2]), "feed", "Placeholder"),
        (lambda: tf.fill([SIDE, SIDE], 1.0, name="x"), "kernel", "Fill"),
    ],
)
def test_buffers_that_lie_there_before_the_step(made: Any, kind: str, kernel: str) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = made()
        use(tensor)

    edge = only_edge(build)
    assert (edge.site.op, edge.site.type, edge.site.kind) == ("x", kernel, kind)
    assert edge.mutability == "immutable"


@pytest.mark.parametrize("reader", [PS, W0], ids=["on the server", "on the worker"])
def test_resource_variables_may_be_overwritten(reader: str) -> None:
    # TensorFlow reads a variable where it is, whatever the reading operation asks for
    def build() -> None:
        with tf.device(PS):
            start = tf.zeros([SIDE, SIDE])
            variable = v1.get_variable("v", initializer=start, use_resource=True)
        with tf.device(reader):
            value = variable.read_value()
        use(value)

    edge = only_edge(build)
    assert (edge.source, edge.destination, edge.shape) == (PS, W0, (SIDE, SIDE))
    assert edge.mutability == "variable"
    assert (edge.site.op, edge.site.type, edge.site.kind) == ("v", "VarHandleOp", "variable")
    assert edge.site.through[0] == "ReadVariableOp"


@pytest.mark.parametrize("how", ["read", "handle", "assigned", "added"])
def test_reference_variables_may_be_overwritten_at_any_time(how: str) -> None:
    def build() -> None:
        with tf.device(PS):
            start = tf.zeros([SIDE, SIDE])
            variable = v1.get_variable("v", initializer=start, use_resource=False)
            tensor = {
                "read": lambda: variable.value(),
                "handle": lambda: variable._ref(),
                "assigned": lambda: v1.assign(variable, product()),
                "added": lambda: v1.assign_add(variable, product()),
            }[how]()
        use(tensor)

    edge = only_edge(build)
    assert (edge.mutability, edge.dtype, edge.bytes) == ("reference variable", "float32", MATRIX)
    # the output of an assignment is the variable's own buffer
    assert (edge.site.op, edge.site.type, edge.site.kind) == ("v", "VariableV2", "variable")


def test_the_initial_value_is_born_in_its_kernel() -> None:
    def build() -> None:
        with tf.device(W0):
            start = tf.fill([SIDE, SIDE], 0.5, name="start")
        with tf.device(PS):
            v1.get_variable("v", initializer=start, use_resource=True)

    plan = plan_of(build)
    (edge,) = plan.edges
    assert (edge.source, edge.destination) == (W0, PS)
    assert (edge.site.op, edge.site.kind) == ("start", "kernel")
    (variable,) = plan.variables
    assert (variable.name, variable.task, variable.readers) == ("v", PS, 0)
    assert (variable.shape, variable.bytes) == ((SIDE, SIDE), MATRIX)


def test_ops_that_are_colocated_are_where_their_partner_is() -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed()
        with tf.Graph.colocate_with(v1.get_default_graph(), tensor.op):
            near = tf.negative(tensor, name="near")
        use(near)

    for options in ({}, {"default_device": W0}):
        edge = only_edge(build, **options)
        assert (edge.name, edge.source, edge.destination) == ("near:0", PS, W0)


# ---------------------------------------------------------------- branches, loops, functions


@pytest.fixture(params=["v1", "v2"])
def control_flow(request: pytest.FixtureRequest) -> Any:
    was = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if request.param == "v2" else v1.disable_control_flow_v2)()
    yield request.param
    (v1.enable_control_flow_v2 if was else v1.disable_control_flow_v2)()


def test_what_either_branch_makes_is_only_known_in_the_step(control_flow: str) -> None:
    def build() -> None:
        with tf.device(PS):
            left, right, which = feed(name="l"), feed(name="r"), feed([], tf.bool, "which")
            tensor = v1.cond(which, lambda: left @ right, lambda: tf.tanh(left))
        use(tensor)

    edge = only_edge(build)
    assert (edge.source, edge.destination) == (PS, W0)
    assert (edge.edge_class, edge.shape) == ("static", (SIDE, SIDE))
    assert edge.site.kind == "unknown"


def test_branches_on_another_task(control_flow: str) -> None:
    def build() -> None:
        with tf.device(PS):
            tensor, which = product(), feed([], tf.bool, "which")

        def branch(factor: float) -> Any:
            with tf.device(W0):
                return tf.matmul(tensor, tensor) * factor

        with tf.device(PS):
            v1.cond(which, lambda: branch(1.0), lambda: branch(2.0))

    matrices = [edge for edge in plan_of(build).tensors if edge.dtype == "float32" and edge.shape]
    # to the two branches, or once to the worker if the choice is made there; the product also comes
    # back in one of two ways, or the merge is at the worker
    there = [edge for edge in matrices if edge.source == PS]
    assert 1 <= len(there) <= 2
    for edge in there:
        assert (edge.site.op, edge.site.type, edge.site.kind) == ("m", "MatMul", "kernel")
    assert {(edge.shape, edge.edge_class) for edge in matrices} == {((SIDE, SIDE), "static")}


def loop_across_tasks() -> None:
    """In each round PS sends the state, W0 multiplies it and sends it back; W1 gets the last."""
    with tf.device(PS):
        start, weight = feed(name="start"), feed(name="weight")

    def body(round: Any, state: Any) -> Any:
        with tf.device(W0):
            multiplied = tf.matmul(state, weight, name="multiplied")
        with tf.device(PS):
            return round + 1, tf.add(multiplied, 1.0, name="sum")

    with tf.device(PS):
        zero = tf.constant(0)
        _, last = v1.while_loop(lambda round, _: round < 10, body, [zero, start])
    use(last, W1)


def test_loops_across_tasks(control_flow: str) -> None:
    plan = plan_of(loop_across_tasks)
    matrices = [edge for edge in plan.tensors if edge.dtype == "float32"]
    # the state and the weight; the product; the last state
    assert links(matrices) == {(PS, W0): 2, (W0, PS): 1, (PS, W1): 1}
    (back,) = (edge for edge in matrices if edge.source == W0)
    assert (back.site.type, back.site.kind) == ("MatMul", "kernel")
    (last,) = (edge for edge in matrices if edge.destination == W1)
    # in all rounds but the first; it could also be left to the step
    assert (last.site.type, last.site.kind) in {("AddV2", "kernel"), ("Merge", "unknown")}
    for edge in matrices:
        assert edge.shape in {None, (None, None), (SIDE, SIDE)}, "never a wrong one"
        assert edge.edge_class == ("static" if edge.shape == (SIDE, SIDE) else "dynamic")
        assert edge.reason


def test_what_no_round_changes_comes_from_outside_the_loop(control_flow: str) -> None:
    there = [edge for edge in plan_of(loop_across_tasks).tensors if edge.destination == W0]
    of_weight = [edge for edge in there if edge.site.op == "weight"]
    assert [(edge.site.type, edge.site.kind) for edge in of_weight] == [("Placeholder", "feed")]


@pytest.mark.parametrize("control_flow", ["v2"], indirect=True)
def test_shapes_in_loops_follow_from_their_bodies(control_flow: str) -> None:
    # a v2 loop is an operation with the shapes of its outputs, and its body a function
    plan = plan_of(loop_across_tasks)
    matrices = [edge for edge in plan.tensors if edge.dtype == "float32"]
    assert {edge.shape for edge in matrices} == {(SIDE, SIDE)}
    assert {edge.edge_class for edge in matrices} == {"static"}


def spanning(x: Any) -> Any:
    with tf.device(PS):
        near = tf.tanh(x, name="near")
    with tf.device(W0):
        return tf.matmul(near, near, name="far")


def test_a_call_whose_body_spans_tasks() -> None:
    # x is on PS as is the tanh; the tanh goes to W0, and the product from there to W1
    def build() -> None:
        with tf.device(PS):
            tensor = feed()
        use(tf.function(spanning)(tensor), W1)

    plan = plan_of(build)
    assert links(plan.tensors) == {(PS, W0): 1, (W0, W1): 1}
    assert {edge.shape for edge in plan.tensors} == {(SIDE, SIDE)}
    sites = {edge.source: (edge.site.type, edge.site.kind) for edge in plan.tensors}
    assert sites == {PS: ("Tanh", "kernel"), W0: ("MatMul", "kernel")}


def test_calls_within_calls() -> None:
    inner = tf.function(spanning)

    @tf.function
    def outer(x: Any) -> Any:
        first = inner(x)
        with tf.device(PS):
            first = tf.matmul(first, first)
        return inner(first)

    def build() -> None:
        with tf.device(PS):
            tensor = feed()
        use(outer(tensor), W1)

    plan = plan_of(build)
    # twice to W0, the first product back, the second on to W1
    assert links(plan.tensors) == {(PS, W0): 2, (W0, PS): 1, (W0, W1): 1}
    assert {edge.edge_class for edge in plan.tensors} == {"static"}


def test_a_call_on_one_task() -> None:
    @tf.function
    def body(x: Any) -> Any:
        return tf.reshape(tf.matmul(x, x), [SIDE * SIDE])

    def build() -> None:
        with tf.device(PS):
            tensor = body(feed())
        use(tensor)

    (edge,) = plan_of(build).tensors
    assert (edge.source, edge.destination, edge.shape) == (PS, W0, (SIDE * SIDE,))
    assert (edge.site.type, edge.site.kind) == ("MatMul", "kernel")
    assert "Reshape" in edge.site.through


def test_shapes_go_through_bodies_that_were_traced_without_them() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, SIDE])])
    def body(x: Any) -> Any:
        return tf.matmul(x, tf.ones([SIDE, 32]))

    def build() -> None:
        with tf.device(PS):
            tensor = body(feed([128, SIDE]))
        use(tensor)

    (edge,) = plan_of(build).tensors
    assert (edge.shape, edge.edge_class) == ((128, 32), "static")


def test_concrete_functions() -> None:
    function = tf.function(spanning, input_signature=[tf.TensorSpec([SIDE, SIDE])])
    for graph in (function.get_concrete_function(), function):
        plan = analyze(graph, CLUSTER, default_device=PS)
        # the result goes back to where the caller is
        assert links(plan.tensors) == {(PS, W0): 1, (W0, PS): 1}
        (there,) = (edge for edge in plan.tensors if edge.destination == W0)
        assert (there.name, there.site.op, there.edge_class) == ("near:0", "near", "static")


def test_saved_models_of_sessions(tmp_path: Path) -> None:
    graph = tf.Graph()
    with graph.as_default():
        with tf.device(PS):
            tensor = product()
        use(tensor)
        with v1.Session() as session:
            builder = v1.saved_model.Builder(str(tmp_path / "model"))
            builder.add_meta_graph_and_variables(session, ["serve"])
            builder.save()
    plan = analyze(tmp_path / "model", CLUSTER, tags=["serve"])
    (edge,) = plan.edges
    assert (edge.name, edge.shape, edge.site.op) == ("m:0", (SIDE, SIDE), "m")


def test_saved_models_of_modules(tmp_path: Path) -> None:
    module = tf.Module()
    module.call = tf.function(spanning, input_signature=[tf.TensorSpec([SIDE, SIDE])])
    tf.saved_model.save(module, str(tmp_path), signatures=module.call)
    plan = analyze(tmp_path, CLUSTER, default_device=PS)
    there = [edge for edge in plan.tensors if (edge.source, edge.destination) == (PS, W0)]
    matrices = [edge for edge in there if edge.dtype == "float32"]
    assert [(edge.shape, edge.site.type) for edge in matrices] == [((SIDE, SIDE), "Tanh")]


# ---------------------------------------------------------------- memory


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
    assert {edge.name for edge in plan.of_class("dynamic")} == left_out
    assert len(plan.of_class("static")) == 3 - len(left_out)
    for edge in plan.of_class("dynamic"):
        assert (edge.slots, edge.slot_bytes) == (0, 0)
        assert edge.bytes is not None
        assert "did not fit" in edge.reason
        assert "RDMA_TRANSPORT_ARENA_SIZE" in edge.reason
    for task in plan.tasks:
        came = [edge.slot_bytes for edge in plan.edges if edge.destination == task.name]
        assert task.slot_bytes == sum(came)
        assert task.slot_bytes + task.source_bytes <= limit


def test_the_receivers_memory_counts_too() -> None:
    # three senders of 100 KiB each, one receiver that has room for two
    def build() -> None:
        for task in (PS, W0, W0):
            with tf.device(task):
                tensor = feed([100 * KIB], tf.uint8)
            use(tensor, W1)

    plan = plan_of(build, arena_limit=2 * 2 * 100 * KIB)
    assert len(plan.of_class("static")) == 2
    (edge,) = plan.of_class("dynamic")
    assert W1 in edge.reason


# ---------------------------------------------------------------- devices that are not said


def test_ops_without_a_device_are_on_the_default_task() -> None:
    def build() -> None:
        tensor = feed()
        with tf.device(PS):
            tf.identity(tensor)

    edge = only_edge(build, default_device=W1)
    assert (edge.source, edge.destination) == (W1, PS)
    assert edge.source_device == "/job:worker/replica:0/task:1/device:CPU:0"


def test_a_device_without_a_task_is_on_the_default_task() -> None:
    # as in tf.device("/cpu:0") in a session of that task
    def build() -> None:
        with tf.device("/cpu:0"):
            tensor = feed()
        with tf.device(PS):
            tf.identity(tensor)

    edge = only_edge(build, default_device=W1)
    assert (edge.source, edge.destination) == (W1, PS)


def test_a_graph_on_one_task_has_no_edges() -> None:
    plan = plan_of(lambda: tf.negative(feed()), default_device=W0)
    assert plan.edges == ()
    assert plan.nodes >= 2


@pytest.mark.parametrize("device", ["/job:evaluator/task:0", "/job:worker/task:7", "nonsense", "/"])
def test_default_devices_that_are_none(device: str) -> None:
    with pytest.raises(AnalysisError):
        plan_of(feed, default_device=device)


# ---------------------------------------------------------------- random graphs

UNARY = (tf.negative, tf.tanh, tf.identity, tf.stop_gradient, tf.square)
BINARY = (tf.add, tf.multiply, tf.maximum)
Recipe = tuple[int, int, int, int]


def random_graph(shapes: list[list[int]], recipes: list[Recipe]) -> tf.Graph:
    graph = tf.Graph()
    with graph.as_default():
        made = []
        for index, shape in enumerate(shapes):
            with tf.device(TASKS[index % 3]):
                made.append(feed(shape))
        for task, which, first, second in recipes:
            left = made[first % len(made)]
            equal = [tensor for tensor in made if tensor.shape == left.shape]
            with tf.device(TASKS[task]):
                if which < len(UNARY):
                    made.append(UNARY[which](left))
                elif which < len(UNARY) + len(BINARY):
                    right = equal[second % len(equal)]
                    made.append(BINARY[which - len(UNARY)](left, right))
                else:
                    made += tf.split(left, 2, axis=0)
    return graph


def count_crossing(graph: tf.Graph) -> dict[tuple[str, str, str], tuple[int, ...]]:
    """(tensor, from, to) to its shape, from nothing but names, devices and inputs of nodes."""
    definition = graph.as_graph_def()
    device = {node.name: node.device.partition("/device:")[0] for node in definition.node}
    found = {}
    for node in definition.node:
        for given_input in node.input:
            producer, _, output = given_input.partition(":")
            if device[producer] != device[node.name]:
                tensor = f"{producer}:{output or 0}"
                shape = tuple(graph.get_tensor_by_name(tensor).shape.as_list())
                found[tensor, device[producer], device[node.name]] = shape
    return found


@settings(max_examples=40, deadline=None)
@given(
    # of 2, so that halves still have a whole number of rows, and never of 1, which would broadcast
    shapes=st.lists(
        st.lists(st.sampled_from([64, 128, 256]), min_size=1, max_size=3), min_size=1, max_size=4
    ),
    recipes=st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 8), st.integers(0, 2**16), st.integers(0, 2**16)
        ),
        max_size=25,
    ),
    inline_limit=st.sampled_from([0, 256, 4096, 2**20]),
)
def test_random_graphs_have_the_edges_that_a_count_gives(
    shapes: list[list[int]], recipes: list[Recipe], inline_limit: int
) -> None:
    kept = [recipe for index, recipe in enumerate(recipes) if recipe[1] < 8 or index < 5]
    graph = random_graph(shapes, kept)
    plan = analyze(graph, CLUSTER, inline_limit=inline_limit, arena_limit="1TiB")
    expected = count_crossing(graph)
    found = {(edge.name, edge.source, edge.destination): edge.shape for edge in plan.edges}
    assert found == expected
    assert len(plan.edges) == len(expected)
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    for edge in plan.edges:
        size = 4
        for dimension in expected[edge.name, edge.source, edge.destination]:
            size *= dimension
        assert edge.bytes == size
        assert edge.edge_class == ("inline" if size <= inline_limit else "static")
        sent[edge.source] += size
        received[edge.destination] += size
    for task in plan.tasks:
        assert (task.sent_bytes, task.received_bytes) == (sent[task.name], received[task.name])
