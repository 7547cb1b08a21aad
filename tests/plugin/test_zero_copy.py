"""Ways to TensorFlow that rename devices: nothing is copied, and nobody writes into what came."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bench.support.cluster import Cluster
from bench.support.counters import Counts, combine
from tests.plugin.test_ownership import ORIGINAL, USES, used_elsewhere
from tests.support import forked
from tests.support.clients import connected
from tests.support.graphs import A, B, Graph, same_bits, v1

pytestmark = pytest.mark.timeout(200)
STEPS = 12
WEIGHTS = 2**18


def assert_nothing_copied(before: Counts, after: Counts, at_least: int, results: int = 0) -> None:
    """Between two counts of all tasks, of which one received `at_least` bytes, but for results."""
    steady = combine(after, before, -1)
    received = sum(count["bytes"] for count in steady["received"].values())
    assert received >= at_least
    assert steady["copied_bytes"] <= results + received / 100
    assert steady["staged_tensors"] == 0
    assert steady["registrations"] == 0


@pytest.mark.parametrize("front_end", ["coordinator", "fit", "functions"])
def test_a_front_end_learns_the_same_without_a_copy(front_end: str) -> None:
    weights: dict[str, list[str]] = {}
    for protocol in ("grpc", "rdma"):
        with connected(front_end, protocol) as client:
            client.run(STEPS)
            first = client.weights()
            before = client.run(0)
            after = client.run(STEPS)
            weights[protocol] = [first, client.weights()]
            if protocol == "rdma":
                assert before is not None
                assert after is not None
                results = STEPS * WEIGHTS if front_end == "functions" else 0
                assert_nothing_copied(before, after, 2 * STEPS * WEIGHTS, results)
    assert weights["grpc"] == weights["rdma"]


@pytest.mark.parametrize(("front_end", "edges"), [("coordinator", 4), ("fit", 4), ("functions", 5)])
def test_functions_are_static_from_their_first_step(front_end: str, edges: int) -> None:
    """Whichever task instantiates the function, and whichever tasks the edges connect."""
    weights: dict[str, str] = {}
    for protocol in ("grpc", "rdma"):
        with connected(front_end, protocol) as client:
            before = client.run(0)
            after = client.run(1)
            weights[protocol] = client.weights()
            if protocol == "rdma":
                assert before is not None
                assert after is not None
                sent = combine(after, before, -1)["sent"]
                assert sent["static"] == {"tensors": edges, "bytes": edges * WEIGHTS}
                assert sent["dynamic"]["tensors"] == 0
    assert weights["grpc"] == weights["rdma"]


def test_steps_use_the_slots_of_receivers_as_soon_as_they_are_there() -> None:
    """Two tasks that meet in the first step send before that. On a busy machine, more steps do."""
    with connected("functions", "rdma", {"RDMA_TRANSPORT_ZERO_COPY": "off"}) as client:
        counted = [client.run(1) for _ in range(10)]
    steps = [
        {mode: sent["tensors"] for mode, sent in combine(after, before, -1)["sent"].items()}
        for before, after in itertools.pairwise(counted)
        if before is not None and after is not None
    ]
    assert any(step["static"] == 5 and step["dynamic"] == 0 for step in steps), steps


@contextmanager
def renaming(protocol: str) -> Iterator[tuple[Cluster, dict[str, list[str]]]]:
    """Tasks x and y, which a session is to call a and b."""
    with Cluster({"x": 1, "y": 1}, protocol) as cluster:
        yield cluster, {"a": cluster.spec["x"], "b": cluster.spec["y"]}


def test_a_session_that_brings_its_cluster_copies_nothing() -> None:
    def build() -> Any:
        with tf.device(A):
            fed = v1.placeholder_with_default(tf.ones([256, 256]), [256, 256], name="fed")
            weights = v1.get_variable("w", [256, 256], use_resource=True)
            weights.assign(fed, name="load", read_value=False)
        with tf.device(B):
            gradient = tf.tanh(weights) * 0.01
        with tf.device(A):
            return weights.assign_sub(gradient)

    value = np.random.default_rng(5).uniform(size=[256, 256]).astype(np.float32)
    results: dict[str, list[Any]] = {}
    for protocol in ("grpc", "rdma"):
        with renaming(protocol) as (cluster, names), Graph(cluster, build, names) as graph:
            graph.run("load", feed={"fed:0": value})
            results[protocol] = [graph.run() for _ in range(STEPS)]
            before = cluster.counted()
            results[protocol] += [graph.run() for _ in range(STEPS)]
            after = cluster.counted()
            if protocol == "rdma":
                assert before is not None
                assert after is not None
                assert_nothing_copied(before, after, at_least=2 * STEPS * WEIGHTS)
    assert same_bits(results["grpc"], results["rdma"])


def test_no_kernel_on_a_renamed_device_writes_into_a_received_tensor() -> None:
    pairs = [(view, use) for view in ("all of it", "its tail") for use in USES]
    with (
        renaming("rdma") as (cluster, names),
        Graph(cluster, used_elsewhere(pairs), names) as graph,
    ):
        for _ in range(2):
            for seen in graph.run()[-2:]:
                assert seen.tobytes() == ORIGINAL.tobytes()


EAGER = """
import json, os, sys, tensorflow as tf
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec({"w": sys.argv[2:]}), job_name="chief", protocol="rdma")
there, here = "/job:w/task:0", sys.argv[1]
with tf.device(there):
    held = tf.Variable(tf.fill([300, 300], 2.0))
    source = tf.fill([300, 300], 3.0)
with tf.device(here):
    received, weights = tf.identity(source), tf.identity(held)
    own = tf.Variable(received)
    own.assign_add(tf.ones([300, 300]))
    own.scatter_update(tf.IndexedSlices(tf.zeros([1, 300]), [0]))
    tail = received[8:]
    for _ in range(2):
        spoilt = [tf.negative(tail), tf.negative(received), tf.nn.relu(-received)]
        spoilt.append(tf.raw_ops.InplaceAdd(x=received, i=[0], v=tf.ones([1, 300])))
        if "chief" in here:
            spoilt.append(tf.py_function(lambda x: -x, [received], tf.float32))
    del tail
for update in (held.assign_add, held.assign_sub, held.assign):
    with tf.device(there):
        update(tf.fill([300, 300], 7.0))
with tf.device(there):
    held.scatter_add(tf.IndexedSlices(tf.ones([300, 300]), tf.range(300)))
print(json.dumps([[float(tf.reduce_min(x)), float(tf.reduce_max(x))]
                  for x in (received, source, weights, held, own[1:])]))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("here", ["/job:chief/task:0", "/job:w/task:1"])
def test_no_eager_operation_writes_into_a_received_tensor(tmp_path: Path, here: str) -> None:
    """What one task holds of another's variable stays when the variable changes."""
    script = tmp_path / "chief.py"
    script.write_text(EAGER)
    with Cluster({"w": 2}) as cluster:
        result = forked.run([str(script), here, *cluster.spec["w"]], timeout=90)
        assert result.returncode == 0, result.stderr[-3000:]
        assert cluster["w", 0].stats()["staged_tensors"] == 0
    # The program's own tensors are copies. InplaceAdd writes into its input, as over gRPC.
    received = [3, 5] if "chief" in here else [3, 3]
    assert json.loads(result.stdout.splitlines()[-1]) == [received, [3, 3], [2, 2], [8, 8], [4, 4]]
