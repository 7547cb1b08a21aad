"""Tensors whose place is agreed on before they are there."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bench.support.cluster import Cluster
from tests.support import forked
from tests.support.deadlines import eventually, patient
from tests.support.graphs import A, B, C, Graph, assert_equal_over_both, v1

pytestmark = pytest.mark.timeout(120)
Clusters = dict[str, Cluster]
WIDTH, BATCH = 256, 8


def plan(cluster: Cluster, job: str = "a") -> dict[str, Any]:
    found: dict[str, Any] = cluster[job, 0].stats()["plan"]
    return found


def totals(cluster: Cluster) -> dict[str, int]:
    """Sums over the tasks of a cluster."""
    result: dict[str, int] = {}
    for task in cluster.tasks.values():
        stats = task.stats()
        counts = {key: stats[key] for key in ("copied_bytes", "registrations")}
        counts |= {f"{path}_tensors": count["tensors"] for path, count in stats["sent"].items()}
        counts |= {f"{path}_bytes": count["bytes"] for path, count in stats["sent"].items()}
        counts |= {
            key: stats["plan"][key]
            for key in ("hits", "promotions", "demotions", "slot_allocations", "pool_blocks_ever")
        }
        for key, count in counts.items():
            result[key] = result.get(key, 0) + count
    return result


def training() -> Any:
    """Weights on a, two workers on b and c, gradients back to a: one synchronous step."""
    with tf.device(A):
        weights = [
            v1.get_variable(
                f"w{layer}", [WIDTH, WIDTH], use_resource=True,
                initializer=v1.random_normal_initializer(stddev=0.1, seed=layer + 1),
            )
            for layer in range(3)
        ]  # fmt: skip
    gradients, losses = [], []
    for number, device in enumerate((B, C)):
        with tf.device(device):
            value = tf.random.stateless_normal([BATCH, WIDTH], [number, 5])
            with tf.device(A):
                reads = [weight.read_value() for weight in weights]
            reads = [tf.identity(read) for read in reads]
            for read in reads:
                value = tf.tanh(tf.matmul(value, read))
            losses.append(tf.reduce_mean(value * value))
            gradients.append(tf.gradients(losses[-1], reads))
    with tf.device(A):
        updates = [
            tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=0.5, delta=one + other)
            for weight, one, other in zip(weights, *gradients, strict=True)
        ]
        with tf.control_dependencies(updates):
            return tf.identity(losses[0] + losses[1])


def test_training_is_static_from_its_first_step_and_copies_nothing(clusters: Clusters) -> None:
    rdma = clusters["rdma"]
    with Graph(rdma, training) as graph:
        before = totals(rdma)
        graph.run()
        first = totals(rdma)
        assert first["static_tensors"] - before["static_tensors"] == 2 * 2 * 3
        assert first["dynamic_tensors"] == before["dynamic_tensors"]
        for _ in range(12):
            graph.run()
        warm = totals(rdma)
        for _ in range(10):
            graph.run()
        after = totals(rdma)
    change = {key: after[key] - warm[key] for key in after}
    assert change["static_tensors"] == 10 * 2 * 2 * 3
    assert change["static_bytes"] == 10 * 2 * 2 * 3 * 4 * WIDTH * WIDTH
    for key in ("dynamic_tensors", "grpc_tensors", "copied_bytes", "registrations"):
        assert change[key] == 0, key
    assert change["promotions"] == change["demotions"] == 0


def test_training_gives_the_same_bits_as_over_grpc(clusters: Clusters) -> None:
    losses = assert_equal_over_both(clusters, training, steps=12)
    assert len(set(map(float, losses))) == 12, "it does train"


def test_slots_go_with_their_graph(clusters: Clusters) -> None:
    rdma = clusters["rdma"]

    def planned() -> int:
        return sum(
            edge["planned"]
            for task in rdma.tasks.values()
            for edge in task.stats()["plan"]["edges"]
        )

    before = plan(rdma, "b")["pool_bytes"]
    with Graph(rdma, training) as graph:
        graph.run()
        assert planned() == 12
        assert plan(rdma, "b")["pool_bytes"] > before
    assert eventually(lambda: planned() == 0)
    assert eventually(lambda: plan(rdma, "b")["pool_bytes"] == before)


def doubled() -> Any:
    """An edge whose shape is that of the feed."""
    with tf.device(A):
        fed = v1.placeholder(tf.float32, [None], name="fed")
        made = tf.concat([fed, fed], 0)
    with tf.device(B):
        return tf.identity(-made)


def test_each_shape_of_an_edge_is_static_once_it_has_come_back(clusters: Clusters) -> None:
    """Batches of sentences are padded to one of many lengths, and seldom twice to the same."""
    lengths = [5000 + 16 * bucket for bucket in range(64)]
    feeds = [np.full(n, i, np.float32) for i, n in enumerate(lengths * 4)]
    before = totals(clusters["rdma"])
    assert_equal_over_both(clusters, doubled, feeds=("fed:0", feeds))
    after = totals(clusters["rdma"])
    assert after["promotions"] - before["promotions"] == 2 * 64, "one edge there, one back"
    assert after["static_tensors"] - before["static_tensors"] >= 2 * 2 * 64


RETRACED = """
import json, os, sys, tensorflow as tf

ps, worker = sys.argv[1:]
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec({"ps": [ps], "worker": [worker]}), job_name="chief", protocol="rdma")

@tf.function
def step(length, seed):
    with tf.device("/job:ps/task:0"):
        data = tf.random.stateless_uniform([length, 1024], seed)
    with tf.device("/job:worker/task:0"):
        there = tf.tanh(data)
    with tf.device("/job:ps/task:0"):
        return tf.reduce_max(tf.abs(tf.tanh(data) - there))

lengths = [length for length in range(256, 276) for _ in range(4)]
sums = [float(step(length, tf.constant([i, length]))) for i, length in enumerate(lengths)]
print(json.dumps(sums))
sys.stdout.flush()
os._exit(0)
"""


def test_retraced_functions_do_not_use_up_the_arena(tmp_path: Path) -> None:
    """TensorFlow never destroys what a remote task has of a function that a client retraced."""
    script = tmp_path / "script.py"
    script.write_text(RETRACED)
    little = {"RDMA_TRANSPORT_ARENA_SIZE": "16MiB"}
    with Cluster({"ps": 1, "worker": 1}, environment=little) as cluster:
        addresses = [*cluster.spec["ps"], *cluster.spec["worker"]]
        result = forked.run([str(script), *addresses], timeout=90)
        assert result.returncode == 0, result.stderr[-3000:]
        assert set(json.loads(result.stdout.splitlines()[-1])) == {0.0}
        for task in cluster.tasks.values():
            sent = task.stats()["sent"]
            assert sent["grpc"]["tensors"] == 0
            assert sent["static"]["tensors"] == 20 * 4


def test_loops_across_tasks_use_the_slots_of_their_edges(clusters: Clusters) -> None:
    def build() -> Any:
        v1.disable_control_flow_v2()
        with tf.device(A):
            start = tf.random.stateless_uniform([64, 64], [1, 2])

        def body(i: Any, value: Any) -> Any:
            with tf.device(B):
                value = tf.matmul(value, value) * 0.03
            with tf.device(A):
                return i + 1, value + 1.0

        return v1.while_loop(lambda i, _: i < 12, body, [0, start])[1]

    before = totals(clusters["rdma"])
    assert_equal_over_both(clusters, build, steps=3)
    after = totals(clusters["rdma"])
    assert after["static_tensors"] - before["static_tensors"] > 3 * 12


def test_sessions_with_equal_names_and_other_shapes_do_not_meet(clusters: Clusters) -> None:
    """Two graphs whose edges have the same keys, step by step in turns."""

    def build(length: int) -> Any:
        with tf.device(A):
            data = tf.random.stateless_uniform([length], [length, 2])
        with tf.device(B):
            return tf.identity(-data)

    for protocol in ("grpc", "rdma"):
        with (
            Graph(clusters[protocol], lambda: build(5000)) as short,
            Graph(clusters[protocol], lambda: build(9000)) as long,
        ):
            values = [graph.run() for _ in range(6) for graph in (short, long)]
        if protocol == "grpc":
            expected = values
    assert [v.tobytes() for v in values] == [e.tobytes() for e in expected]


def test_steps_that_overlap_keep_their_tensors_apart(clusters: Clusters) -> None:
    """Many steps of one graph at a time need more buffers than an edge has slots."""

    def build() -> Any:
        with tf.device(A):
            seed = v1.placeholder(tf.int32, [], name="seed")
            data = tf.random.stateless_uniform([20000], tf.stack([seed, seed]))
        with tf.device(B):
            back = tf.identity(-data)
        with tf.device(A):
            return tf.reduce_max(tf.abs(back + data))

    with Graph(clusters["rdma"], build) as graph:
        feed = graph.graph.get_tensor_by_name("seed:0")
        wrong: list[float] = []

        def run(worker: int) -> None:
            for i in range(25):
                wrong.append(float(graph.run(feed={feed: 100 * worker + i})))

        threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patient(60))
    assert len(wrong) == 8 * 25
    assert not any(wrong)


@pytest.fixture(
    scope="module", params=["receiver's slots", "little memory", "no static edges", "checksums"]
)
def unusual(request: pytest.FixtureRequest) -> Iterator[tuple[str, Cluster]]:
    environment = {
        "receiver's slots": {"RDMA_TRANSPORT_ZERO_COPY": "off"},
        "little memory": {"RDMA_TRANSPORT_ARENA_SIZE": "8MiB"},
        "no static edges": {"RDMA_TRANSPORT_STATIC": "off"},
        "checksums": {"RDMA_TRANSPORT_CHECKSUM": "on"},
    }[request.param]
    with Cluster({"a": 1, "b": 1, "c": 1}, environment=environment) as cluster:
        yield request.param, cluster


def test_training_elsewhere_gives_the_same_bits(
    clusters: Clusters, unusual: tuple[str, Cluster]
) -> None:
    kind, cluster = unusual
    before = totals(cluster)
    assert_equal_over_both({"grpc": clusters["grpc"], "rdma": cluster}, training, steps=12)
    after = totals(cluster)
    change = {key: after[key] - before[key] for key in after}
    assert change["grpc_tensors"] == 0
    if kind == "receiver's slots":
        assert change["static_tensors"] > 0
        assert change["copied_bytes"] >= change["static_bytes"], "each write is counted as a copy"
        with Graph(cluster, training) as graph:
            graph.run()
            placements = {e["placement"] for e in plan(cluster)["edges"] if e["planned"]}
        assert placements == {"receiver"}
    elif kind == "checksums":
        assert change["static_tensors"] > 0
        assert cluster["b", 0].stats()["errors"] == {}
    elif kind == "no static edges":
        assert change["static_tensors"] == 0
        assert change["dynamic_tensors"] == 12 * 12


def test_a_plan_beyond_the_arena_goes_dynamically(
    clusters: Clusters, unusual: tuple[str, Cluster]
) -> None:
    kind, cluster = unusual

    def build() -> Any:
        results = []
        for number in range(6):
            with tf.device(A):
                data = tf.random.stateless_uniform([2**18], [number, 3])  # 1 MiB
            with tf.device(B):
                results.append(tf.reduce_sum(tf.identity(data)))
        return results

    assert_equal_over_both({"grpc": clusters["grpc"], "rdma": cluster}, build, steps=2)
    if kind == "little memory":
        planned = [e for e in plan(cluster)["edges"] if e["planned"] and e["bytes"] == 2**20]
        assert len(planned) < 6
        assert plan(cluster)["pool_bytes"] <= 8 * 2**20


def test_what_lies_in_a_slot_does_not_change_while_it_is_used(
    clusters: Clusters, unusual: tuple[str, Cluster]
) -> None:
    """Kernels may compute in place in a slot if nothing else uses it, but must not keep it."""
    _, cluster = unusual

    def build() -> Any:
        with tf.device(A):
            data = tf.random.stateless_uniform([30000], [4, 4])
            other = tf.random.stateless_uniform([30000], [5, 5])
        with tf.device(B):
            received = tf.identity(data)
            kept = v1.get_variable("kept", [30000], use_resource=True)
            sums = v1.get_variable("sums", [30000], use_resource=True)
            total = sums.assign(2.0 * other + sums.read_value())
            with tf.control_dependencies([kept.assign(received)]):
                added = kept.assign_add(tf.ones([30000]))
            with tf.control_dependencies([added]):
                results = [tf.identity(kept.read_value()), tf.exp(-received), tf.sort(received)]
            with tf.control_dependencies(results):
                return [*results, tf.identity(received), tf.identity(total)]

    assert_equal_over_both({"grpc": clusters["grpc"], "rdma": cluster}, build, steps=8)
