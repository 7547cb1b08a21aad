"""The names people type, and TensorFlow 2's ways to a cluster."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from bench.support.cluster import Cluster, free_port
from tests.support import forked
from tests.support.deadlines import eventually
from tests.support.graphs import A, B, Graph, v1

pytestmark = pytest.mark.timeout(120)


def across() -> Any:
    with tf.device(A):
        data = tf.random.uniform([30000])
    with tf.device(B):
        return tf.reduce_sum(data)


def test_sessions_on_an_rdma_address(rdma: Cluster) -> None:
    with tf.Graph().as_default() as graph:
        total = across()
        for scheme in ("rdma", "grpc+verbs", "grpc+rdma"):
            with v1.Session(f"{scheme}://{rdma.spec['a'][0]}", graph=graph) as session:
                assert session.run(total) > 0


@pytest.mark.parametrize("alias", ["grpc+verbs"])
def test_the_names_of_older_transports(alias: str) -> None:
    with Cluster({"a": 1, "b": 1}, protocol=alias) as cluster, Graph(cluster, across) as graph:
        assert graph.run() > 0
        assert cluster["a", 0].stats()["sent"]["static"]["tensors"] == 1


def test_a_traced_step_lists_what_came_from_other_tasks(clusters: dict[str, Cluster]) -> None:
    """`RecvTensor` in RunMetadata, which timelines show: edge, bytes and both devices."""

    def chain() -> Any:
        with tf.device(A):
            data = tf.fill([30000], v1.placeholder_with_default(1.0, []))
            small = tf.fill([3], v1.placeholder_with_default(2.0, []))
        with tf.device(B):
            text = tf.strings.as_string(small)
            return tf.reduce_sum(data * 2), text

    def traced(graph: Graph) -> set[tuple[str, str]]:
        metadata = v1.RunMetadata()
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        graph.session.run(graph.fetches, options=options, run_metadata=metadata)
        return {
            (device.device, re.sub(r"\[\S+/s\] ", "", node.timeline_label))
            for device in metadata.step_stats.dev_stats
            for node in device.node_stats
            if node.node_name == "RecvTensor"
        }

    labels: dict[str, set[tuple[str, str]]] = {}
    for protocol, cluster in clusters.items():
        with Graph(cluster, chain) as graph:
            # A step does not wait until the other tasks know that it is traced.
            seen = labels.setdefault(protocol, set())
            for _ in range(500):
                seen |= traced(graph)
                if len(seen) == 4:
                    break
    assert labels["rdma"] == labels["grpc"]


FAILURE = """
import os, sys, tensorflow as tf
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec({"w": sys.argv[1:]}), job_name="chief", protocol="rdma")
with tf.device("/job:w/task:0"):
    v = tf.Variable(tf.ones([64, 64]))

@tf.function
def step():
    with tf.device("/job:w/task:1"):
        product = tf.matmul(v, v)
        bad = tf.debugging.check_numerics(tf.math.log(-product), "bad")
    scaled = product * 0.1
    v.assign_sub(scaled)
    with tf.device("/job:w/task:1"):
        return tf.reduce_sum(bad)

try:
    step()
except tf.errors.InvalidArgumentError:
    with tf.device("/job:w/task:0"):
        print("lives", v.shape, float(tf.reduce_sum(tf.ones([64]))))
sys.stdout.flush()
os._exit(0)
"""

NAMESAKES = """
import os, sys, tensorflow as tf
# Its own name, /job:localhost/task:0, is also what the client is called in the cluster it makes.
server = tf.distribute.Server({"localhost": ["localhost:0"]}, protocol="rdma")
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec({"worker": [server.target[len("grpc://"):]]}), protocol="rdma")
for size in (2, 300):
    with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
        product = tf.matmul(tf.ones([size, size]), tf.ones([size, size]))
    print(float(tf.reduce_sum(product)), flush=True)
os._exit(0)
"""

REPLACED = """
import os, sys, tensorflow as tf
from tensorflow.core.protobuf.tensorflow_server_pb2 import ServerDef
from tensorflow.python.eager import context

own, *addresses = sys.argv[1:]

def connect(how, address):
    server = ServerDef(job_name="chief", task_index=0, protocol="rdma")
    for job, task in (("chief", own), ("worker", address)):
        server.cluster.job.add(name=job).tasks[0] = task
    how(server)

for how, address in zip((context.set_server_def, context.update_server_def), addresses):
    connect(how, address)
    with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
        product = tf.matmul(tf.ones([300, 300]), tf.ones([300, 300]))
    print(float(product.numpy().sum()), flush=True)
os._exit(0)
"""

RELEASED = """
import json, os, sys, tensorflow as tf

def connect(**jobs):
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec(jobs), job_name="chief", protocol="rdma")

ps, worker = sys.argv[1:]
connect(ps=[ps], worker=[worker])
with tf.device("/job:ps/task:0"):
    weights = tf.Variable(tf.ones([300, 300]))

@tf.function
def step():
    with tf.device("/job:worker/task:0"):
        product = tf.tanh(weights)
    with tf.device("/job:ps/task:0"):
        return tf.reduce_sum(product)

print(float(step()))
connect(ps=[ps], other=[worker])  # ends what it holds on both tasks
os._exit(0)
"""

PARAMETER_SERVER = """
import json, os, sys, tensorflow as tf
os.environ["TF_CONFIG"] = sys.argv[1]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    w = tf.Variable(tf.ones([100, 100]))

@tf.function
def step():
    g = tf.matmul(w, w) * 0.001
    w.assign_sub(g)
    return tf.reduce_sum(g)

for _ in range(4):
    coordinator.schedule(step)
    coordinator.join()
print(float(tf.reduce_sum(w)).hex())
sys.stdout.flush()
os._exit(0)
"""


def script(tmp_path: Path, code: str, *arguments: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(code)
    result = forked.run([str(path), *arguments], timeout=90)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.strip().splitlines()[-1]


def test_a_function_that_fails_in_one_task_leaves_the_others_alive(tmp_path: Path) -> None:
    """Before any link is up: a task waits for a tensor when the step is cleaned up."""
    with Cluster({"w": 2}) as cluster:
        assert script(tmp_path, FAILURE, *cluster.spec["w"]) == "lives (64, 64) 64.0"
        for task in cluster.tasks.values():
            assert task.stats()["loaded"]


def test_plans_go_with_the_functions_of_a_client(tmp_path: Path) -> None:
    with Cluster({"ps": 1, "worker": 1}) as cluster:
        assert script(tmp_path, RELEASED, *cluster.spec["ps"], *cluster.spec["worker"])
        for task in cluster.tasks.values():
            assert task.stats()["sent"]["static"]["tensors"] == 1
            assert eventually(lambda task=task: not task.stats()["plan"]["edges"], seconds=20)


def test_a_client_with_the_name_of_its_server(tmp_path: Path) -> None:
    assert script(tmp_path, NAMESAKES) == str(300.0**3)


def test_a_client_reads_from_the_task_that_replaced_another(tmp_path: Path) -> None:
    """The client's rendezvous of eager tensors is the same before and after."""
    with Cluster({"w": 1}) as first, Cluster({"w": 1}) as second:
        addresses = [cluster.spec["w"][0] for cluster in (first, second)]
        own = f"127.0.0.1:{free_port()}"
        assert script(tmp_path, REPLACED, own, *addresses) == str(300.0**3)
        for cluster in (first, second):
            assert cluster["w", 0].stats()["sent"]["dynamic"]["tensors"] > 0


def test_parameter_server_strategy_by_rpc_layer(tmp_path: Path) -> None:
    answers = {}
    for protocol in ("grpc", "rdma"):
        # The script is the chief.
        jobs = {"ps": 1, "worker": 1, "chief": 1}
        with Cluster(jobs, protocol, without=[("chief", 0)]) as cluster:
            config = {
                "cluster": cluster.spec,
                "task": {"type": "chief", "index": 0},
                "rpc_layer": protocol,
            }
            answers[protocol] = script(tmp_path, PARAMETER_SERVER, json.dumps(config))
            if protocol == "rdma":
                assert cluster["ps", 0].stats()["sent"]["dynamic"]["tensors"] > 0
    assert answers["grpc"] == answers["rdma"]
