"""A session's master starts steps on other tasks, and reports what gRPC would."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bench.support.cluster import Cluster
from tests.support.graphs import A, B, Graph, v1

pytestmark = pytest.mark.timeout(90)


def crossing(tail: Callable[[Any], Any] = tf.negative) -> Any:
    """From a to b, where `tail` is the last operation, which returns nothing to the master."""
    with tf.device(A):
        value = v1.placeholder_with_default(tf.ones([3]), [None], name="value")
        there = value + 1
    with tf.device(B):
        return [tail(there).op]


def value_of(graph: Graph) -> Any:
    return graph.graph.get_tensor_by_name("value:0")


def reported(error: tf.errors.OpError) -> str:
    """By the master, without the recent logs of its process.

    `error.message` has one traceback for each node that the message or those logs name. Which
    logs are recent depends on time.
    """
    original = error.__context__
    assert isinstance(original, tf.errors.OpError)
    return str(original.message).split("Recent warning and error logs")[0]


def test_an_error_is_the_one_of_grpc(clusters: Mapping[str, Cluster]) -> None:
    def build() -> Any:
        return crossing(lambda there: tf.debugging.check_numerics(there, "told to fail"))

    messages = {}
    for protocol, cluster in clusters.items():
        with Graph(cluster, build) as graph:
            graph.run()
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                graph.run(feed={value_of(graph): [np.nan]})
            messages[protocol] = reported(caught.value)
            graph.run()
    assert "told to fail" in messages["grpc"]
    assert messages["rdma"] == messages["grpc"]


def test_the_calls_that_a_failed_step_cancels_are_not_its_error(rdma: Cluster) -> None:
    """The name of this error is before that of a cancelled call, in the order that TensorFlow uses.

    So it is reported only if the cancelled call does not count. The error comes while the master
    still makes that call: of TensorFlow alone, one of some hundred such steps never ends, because
    it cancels the call too early.
    """

    def build() -> Any:
        with tf.device(B):
            queue = tf.queue.FIFOQueue(1, [tf.float32], [[3]], shared_name="cancelled_calls")
            waiting = queue.dequeue()
        with tf.device(A):
            one, other = (
                tf.raw_ops.TemporaryVariable(shape=[3], dtype=tf.float32, var_name="twice")
                for _ in range(2)
            )
            return [one.op, other.op, tf.identity(waiting)]

    with Graph(rdma, crossing) as linked, Graph(rdma, build) as graph:
        linked.run()
        for _ in range(300):
            with pytest.raises(tf.errors.AlreadyExistsError):
                graph.run()


def test_a_step_that_waits_on_another_task_ends_with_its_timeout(
    clusters: Mapping[str, Cluster],
) -> None:
    def build() -> Any:
        with tf.device(B):
            queue = tf.queue.FIFOQueue(10, [tf.float32], [[3]], shared_name="step_calls")
            fill, size = queue.enqueue(tf.ones([3])), queue.size()
        return crossing(lambda there: queue.dequeue() + there), fill, size

    for cluster in clusters.values():
        with Graph(cluster, build) as graph:
            wait, fill, size = graph.fetches
            graph.run([fill])
            graph.run(wait)
            with pytest.raises(tf.errors.DeadlineExceededError):
                graph.run(wait, timeout_in_ms=1000)
            # The master finds the timeout by itself, over gRPC, hardly later than the client.
            assert graph.run(size) == 0
            # The canceled step takes nothing any more.
            graph.run([fill])
            assert graph.run(size) == 1
            graph.run(wait)
            assert graph.run(size) == 0
