"""Where a crossing tensor is allocated: which kernel makes its buffer, which ops hand it on."""

from typing import Any

import pytest
import tensorflow as tf

from graph_analyzer import Site
from tests.support.planned import MATRIX, PS, SIDE, W0, feed, only_edge, plan_of, product, use, v1

pytestmark = pytest.mark.timeout(60)


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
