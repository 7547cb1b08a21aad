"""Small graphs on a server PS and two workers, placed by hand, and their plans."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from graph_analyzer import Edge, Plan, analyze

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
