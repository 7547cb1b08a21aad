"""The names people type, and TensorFlow 2's ways to a cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from bench.support.cluster import Cluster, running
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
    with running({"a": 1, "b": 1}, protocol=alias) as cluster, Graph(cluster, across) as graph:
        assert graph.run() > 0
        assert cluster["a", 0].stats()["sent"]["static"]["tensors"] == 1


REMOTE_EAGER = """
import sys, tensorflow as tf
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec({"w": sys.argv[2:]}), job_name="chief", protocol=sys.argv[1])
with tf.device("/job:w/task:0"):
    x = tf.random.stateless_uniform([20000], [1, 2])
    v = tf.Variable(tf.zeros([20000]))
with tf.device("/job:w/task:1"):
    y = x * 2.0

@tf.function
def step(z):
    with tf.device("/job:w/task:0"):
        a = z + 1.0
        v.assign_add(a)
    with tf.device("/job:w/task:1"):
        return tf.reduce_sum(a * z), tf.strings.length(tf.strings.as_string(a[:3]))

for _ in range(3):
    total, lengths = step(y)
print(float(total).hex(), lengths.numpy().tolist(), float(tf.reduce_sum(v)).hex(),
      float(tf.reduce_sum(x + y)).hex())
sys.stdout.flush()
import os; os._exit(0)
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
    result = subprocess.run(
        [sys.executable, str(path), *arguments],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.strip().splitlines()[-1]


def test_remote_eager_code_and_functions_across_tasks(tmp_path: Path) -> None:
    answers = {}
    for protocol in ("grpc", "rdma"):
        with running({"w": 2}, protocol) as cluster:
            answers[protocol] = script(tmp_path, REMOTE_EAGER, protocol, *cluster.spec["w"])
            if protocol == "rdma":
                assert cluster["w", 0].stats()["sent"]["dynamic"]["tensors"] > 0
    assert answers["grpc"] == answers["rdma"]


def test_parameter_server_strategy_by_rpc_layer(tmp_path: Path) -> None:
    answers = {}
    for protocol in ("grpc", "rdma"):
        # The script is the chief.
        jobs = {"ps": 1, "worker": 1, "chief": 1}
        with running(jobs, protocol, without=[("chief", 0)]) as cluster:
            config = {
                "cluster": cluster.spec,
                "task": {"type": "chief", "index": 0},
                "rpc_layer": protocol,
            }
            answers[protocol] = script(tmp_path, PARAMETER_SERVER, json.dumps(config))
            if protocol == "rdma":
                assert cluster["ps", 0].stats()["sent"]["dynamic"]["tensors"] > 0
    assert answers["grpc"] == answers["rdma"]
