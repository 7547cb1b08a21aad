"""The peak of a plan: tensors that are never in use together could share memory."""

from collections.abc import Callable

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_analyzer import analyze
from graph_analyzer.plan import Plan
from tests.support.planned import CLUSTER, PS, W0, W1, plan_of

pytestmark = pytest.mark.timeout(120)
ELEMENTS = 4096
SLOT = 4 * ELEMENTS
SLOTS = 2 * SLOT  # of one edge that its sender allocates


def fresh(value: tf.Tensor) -> tf.Tensor:
    """An operation that never passes on its input's buffer."""
    return tf.cumsum(value)


def there_and_back(hops: int) -> Callable[[], None]:
    def build() -> None:
        with tf.device(PS):
            value = tf.random.uniform([ELEMENTS])
        for hop in range(hops):
            with tf.device(W0 if hop % 2 == 0 else PS):
                value = fresh(value)

    return build


def peaks(plan: Plan) -> dict[str, tuple[int, int]]:
    found = {task.name: (task.slot_peak_bytes, task.source_peak_bytes) for task in plan.tasks}
    return {name: both for name, both in found.items() if both != (0, 0)}


def test_a_chain_needs_the_slots_of_one_edge() -> None:
    plan = plan_of(there_and_back(12))
    assert [task.slot_bytes for task in plan.tasks] == [6 * SLOT, 6 * SLOT, 0]
    assert peaks(plan) == {PS: (SLOT, SLOTS), W0: (SLOT, SLOTS)}


def test_tensors_without_order_share_nothing() -> None:
    def build() -> None:
        for index in range(4):
            with tf.device(PS):
                value = tf.random.uniform([ELEMENTS], seed=index)
            with tf.device(W0):
                fresh(value)

    assert peaks(plan_of(build)) == {PS: (0, 4 * SLOTS), W0: (4 * SLOT, 0)}


def test_a_use_on_another_task_keeps_the_buffer() -> None:
    def build() -> None:
        with tf.device(PS):
            first = tf.random.uniform([ELEMENTS])
        with tf.device(W1):
            fresh(first)
        with tf.device(W0):
            result = fresh(first)
        with tf.device(PS):
            back = fresh(result)
        with tf.device(W0):
            fresh(back)

    assert peaks(plan_of(build)) == {PS: (SLOT, 2 * SLOTS), W0: (SLOT, SLOTS), W1: (SLOT, 0)}


def test_a_forwarded_buffer_lives_as_long_as_its_last_name() -> None:
    def build() -> None:
        with tf.device(PS):
            value = tf.random.uniform([ELEMENTS])
        with tf.device(W0):
            name = tf.identity(value)
            result = fresh(name)
        with tf.device(PS):
            back = fresh(result)
        with tf.device(W0):
            tf.raw_ops.AddV2(x=back, y=name)

    assert peaks(plan_of(build))[W0] == (SLOTS, SLOTS)


def test_a_variable_keeps_what_is_assigned_to_it() -> None:
    def build() -> None:
        with tf.device(W0):
            variable = tf.compat.v1.get_variable("v", [ELEMENTS], use_resource=True)
        with tf.device(PS):
            value = tf.random.uniform([ELEMENTS])
        with tf.device(W0):
            result = fresh(value)
            with tf.control_dependencies([variable.assign(value)]):
                result = fresh(result)
        with tf.device(PS):
            back = fresh(result)
        with tf.device(W0):
            fresh(back)

    assert peaks(plan_of(build))[W0][0] == SLOTS


def test_the_plan_charges_the_peak() -> None:
    graph = tf.Graph()
    with graph.as_default():
        there_and_back(12)()
    limit = 3 * SLOTS  # half of what all edges of a task need
    plan = analyze(graph, CLUSTER, arena_limit=limit, inline_limit=0)
    assert [edge.mode for edge in plan.tensors] == ["static"] * 12
    plan = analyze(graph, CLUSTER, arena_limit=SLOTS - 64, inline_limit=0)
    assert [edge.mode for edge in plan.tensors] == ["dynamic"] * 12


@settings(max_examples=30)
@given(st.data())
def test_the_peak_is_between_the_largest_edge_and_the_sum(data: st.DataObject) -> None:
    def build() -> None:
        values = []
        for index in range(data.draw(st.integers(2, 15))):
            with tf.device(data.draw(st.sampled_from([PS, W0, W1]))):
                elements = data.draw(st.sampled_from([256, 1024, 4096]))
                inputs = data.draw(st.lists(st.sampled_from(values), max_size=3)) if values else []
                made = tf.random.stateless_uniform([elements], seed=[index, 1])
                with tf.control_dependencies([fresh(value) for value in inputs]):
                    values.append(fresh(made))

    plan = plan_of(build)
    for task in plan.tasks:
        arriving = [edge for edge in plan.tensors if edge.destination == task.name and edge.slots]
        slots = [edge.slot_bytes // edge.slots for edge in arriving]
        assert max(slots, default=0) <= task.slot_peak_bytes <= task.slot_bytes == sum(slots)
        assert 0 <= task.source_peak_bytes <= task.source_bytes


def test_a_graph_of_ten_thousand_nodes_is_analyzed() -> None:
    plan = plan_of(there_and_back(5000))
    assert plan.nodes > 10_000
    assert peaks(plan) == {PS: (SLOT, SLOTS), W0: (SLOT, SLOTS)}


def test_with_too_many_edges_the_peak_is_the_sum() -> None:
    def build(edges: int) -> None:
        there_and_back(8)()
        with tf.device(PS):
            sizes = [16 * (1 + index % 3) for index in range(edges)]
            parts = tf.split(tf.random.uniform([sum(sizes)]), sizes)
        with tf.device(W0):
            tf.concat(parts, axis=0)

    for edges, shared in ((8180, True), (8193, False)):
        plan = plan_of(lambda edges=edges: build(edges), inline_limit=0)
        worker = next(task for task in plan.tasks if task.name == W0)
        assert (worker.slot_peak_bytes < worker.slot_bytes) == shared
