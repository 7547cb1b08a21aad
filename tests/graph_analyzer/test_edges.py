"""Which tensors cross between tasks: small graphs that a reader can count, and random ones."""

from collections import Counter

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_analyzer import AnalysisError, analyze
from tests.support.planned import (
    CLUSTER,
    MATRIX,
    PS,
    SIDE,
    TASKS,
    W0,
    W1,
    feed,
    links,
    only_edge,
    plan_of,
    product,
    use,
)

pytestmark = pytest.mark.timeout(60)


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
    assert (edge.mode, edge.site.kind) == ("inline", "constant")


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
    assert {edge.mode for edge in plan.edges} == {"static"}


def test_names_that_end_like_those_of_the_partitioner() -> None:
    def build() -> None:
        with tf.device(PS):
            tensor = feed()
            others = [tf.negative(tensor, name=f"x/_{index}") for index in range(6)]
        use(tensor)
        for other in others:
            use(other)

    assert links(plan_of(build).edges) == {(PS, W0): 7}


# --- Devices that are not said ---


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


# --- Random graphs ---


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


@settings(max_examples=40)
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
        assert edge.mode == ("inline" if size <= inline_limit else "static")
        sent[edge.source] += size
        received[edge.destination] += size
    for task in plan.tasks:
        assert (task.sent_bytes, task.received_bytes) == (sent[task.name], received[task.name])
