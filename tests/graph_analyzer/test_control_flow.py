"""Edges of graphs with branches, loops and functions, which only the step unfolds."""

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from graph_analyzer import analyze
from tests.support.planned import (
    CLUSTER,
    PS,
    SIDE,
    W0,
    W1,
    feed,
    links,
    only_edge,
    plan_of,
    product,
    use,
    v1,
)

pytestmark = pytest.mark.timeout(60)


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
    assert (edge.mode, edge.shape) == ("static", (SIDE, SIDE))
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
    assert {(edge.shape, edge.mode) for edge in matrices} == {((SIDE, SIDE), "static")}


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
        assert edge.mode == ("static" if edge.shape == (SIDE, SIDE) else "dynamic")
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
    assert {edge.mode for edge in matrices} == {"static"}


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
    assert {edge.mode for edge in plan.tensors} == {"static"}


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
    assert (edge.shape, edge.mode) == ((128, 32), "static")


def test_concrete_functions() -> None:
    function = tf.function(spanning, input_signature=[tf.TensorSpec([SIDE, SIDE])])
    for graph in (function.get_concrete_function(), function):
        plan = analyze(graph, CLUSTER, default_device=PS)
        # the result goes back to where the caller is
        assert links(plan.tensors) == {(PS, W0): 1, (W0, PS): 1}
        (there,) = (edge for edge in plan.tensors if edge.destination == W0)
        assert (there.name, there.site.op, there.mode) == ("near:0", "near", "static")


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
