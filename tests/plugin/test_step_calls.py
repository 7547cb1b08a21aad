"""A session's master starts steps on other tasks over the fabric, and reports what gRPC would."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bench.support.cluster import Cluster
from tests.support.graphs import A, B, Graph, v1

pytestmark = pytest.mark.timeout(90)


def calls(cluster: Cluster) -> dict[str, int]:
    """Those of the master, by transport."""
    made: dict[str, int] = cluster["a", 0].stats()["step_calls"]
    return made


def made_by(cluster: Cluster, run: Callable[[], Any]) -> dict[str, int]:
    """The calls that `run` makes."""
    before = calls(cluster)
    run()
    return {name: count - before[name] for name, count in calls(cluster).items()}


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


@pytest.fixture
def graph(rdma: Cluster) -> Iterator[Graph]:
    """Linked by its first step."""
    with Graph(rdma, crossing) as made:
        made.run()
        yield made


def test_each_step_starts_over_the_fabric(rdma: Cluster, graph: Graph) -> None:
    assert made_by(rdma, lambda: [graph.run() for _ in range(5)]) == {"fabric": 5, "grpc": 0}


@pytest.mark.parametrize("elements", [1, 100_000])
def test_what_is_fed_and_fetched_does_not_lengthen_the_calls(rdma: Cluster, elements: int) -> None:
    def build() -> Any:
        with tf.device(B):
            return [v1.placeholder(tf.float32, [None], name="value") + 1]

    with Graph(rdma, build) as graph:
        fed = {value_of(graph): np.arange(elements, dtype=np.float32)}
        graph.run(feed=fed)
        results = []
        made = made_by(rdma, lambda: results.append(graph.run(feed=fed)[0]))
        assert made == {"fabric": 1, "grpc": 0}
        assert np.array_equal(results[0], np.arange(elements, dtype=np.float32) + 1)


def test_a_step_that_records_starts_over_grpc(rdma: Cluster, graph: Graph) -> None:
    full = v1.RunOptions.FULL_TRACE
    assert made_by(rdma, lambda: graph.run(trace_level=full)) == {"fabric": 0, "grpc": 1}


def test_the_setting_keeps_them_on_grpc() -> None:
    environment = {"RDMA_TRANSPORT_STEP_CALLS": "grpc"}
    with Cluster({"a": 1, "b": 1}, environment=environment) as cluster:
        with Graph(cluster, crossing) as graph:
            assert made_by(cluster, lambda: [graph.run() for _ in range(3)])["fabric"] == 0


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
    still makes that call: over gRPC, one of some hundred such steps never ends, because TensorFlow
    cancels the call too early.
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


def test_steps_of_several_threads_go_side_by_side(rdma: Cluster, graph: Graph) -> None:
    def steps(_: int) -> None:
        for _ in range(50):
            graph.run()

    def run() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(steps, range(4)))

    assert made_by(rdma, run) == {"fabric": 200, "grpc": 0}
