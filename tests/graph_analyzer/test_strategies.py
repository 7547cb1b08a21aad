"""The collectives of TensorFlow in a step: those of two workers of a strategy, and made by hand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from bench.support.cluster import free_port
from graph_analyzer import AnalysisError, Reduction, reductions
from tests.graph_analyzer.test_cli import ENVIRONMENT, valid
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(240)

TRAIN = """
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    first = tf.Variable(tf.ones([64, 32]), name="first")
    bias = tf.Variable(tf.ones([32]), name="bias")
    last = tf.Variable(tf.ones([32, 16]), name="last")
    table = tf.Variable(tf.ones([100, 64]), name="table")

def replica():
    with tf.GradientTape() as tape:
        rows = tf.nn.embedding_lookup(table, [1, 2, 3])
        loss = tf.reduce_sum(tf.nn.relu(rows @ first + bias) @ last)
    variables = [first, bias, last, table]
    gradients = tape.gradient(loss, variables)
    context = tf.distribute.get_replica_context()
    reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
    for variable, gradient in zip(variables[:3], reduced[:3], strict=True):
        variable.assign_sub(gradient)
    return loss

@tf.function
def step():
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica), axis=None)
"""


@pytest.mark.parametrize(("protocol", "name"), [("rdma", "rdma"), ("grpc", "gRPC")])
def test_each_worker_shows_what_a_strategy_reduces(
    tmp_path: Path, protocol: str, name: str
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    addresses = [f"localhost:{free_port()}" for _ in range(2)]
    workers = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": addresses}, "task": task, "rpc_layer": protocol}
        words = ["-m", "rdma_transport", "plan", f"{tmp_path}/train.py:step", "--json"]
        workers.append(
            subprocess.Popen(
                [sys.executable, *words],
                env=ENVIRONMENT | {"TF_CONFIG": json.dumps(config), "CUDA_VISIBLE_DEVICES": ""},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        said = [each.communicate(timeout=patient(200)) for each in workers]
    finally:
        for each in workers:
            each.kill()
    assert [each.returncode for each in workers] == [0, 0], said
    found, other = (valid(text)["reductions"] for text, _ in said)
    assert found == other
    assert (found["ranks"], found["traced_by"]) == (2, 2)
    assert {each["scheme"] for each in found["operations"]} == {f"TensorFlow over {name}"}
    always = [each for each in found["operations"] if each["within"] is None]
    packed, loss = (each for each in always if each["operation"] == "all_reduce")
    assert sorted(packed["what"]) == ["bias", "first", "last"]
    size = 4 * (64 * 32 + 32 + 32 * 16)
    assert (packed["bytes"], packed["sent"], packed["start"]) == (size, size, 1)
    assert packed["reason"].startswith("CollectiveReduceV2 of group ")
    assert (loss["what"], loss["bytes"]) == (["Sum"], 4)
    rows = [each for each in found["operations"] if each["within"] == "conditional"]
    assert {each["operation"] for each in rows} == {"all_gather"}, "of the table"


# --- Graphs made by hand ---


def found_in(graph: Any) -> Reduction:
    (found,) = reductions(graph).operations
    return found


def reducing(size: Any = 4, **changes: Any) -> tf.Graph:
    """A graph whose only collective reduces three numbers."""
    with tf.Graph().as_default() as graph:
        numbers = tf.reshape(tf.identity(tf.zeros([3]), name="numbers"), [-1])
        tf.raw_ops.CollectiveReduceV2(
            **{"input": numbers, "group_size": size, "group_key": 7, "instance_key": 1}
            | {"ordering_token": [], "merge_op": "Add", "final_op": "Id"}
            | changes
        )
    return graph


def test_what_the_graph_tells() -> None:
    assert found_in(reducing()) == Reduction(
        what=("zeros",),
        operation="all_reduce",
        scheme="TensorFlow",
        reason="CollectiveReduceV2 of group 7",
        bytes=12,
        sent=18,
        start=None,
        within=None,
    )
    assert found_in(reducing(communication_hint="nccl")).scheme == "TensorFlow over NCCL"


def test_collectives_of_other_versions() -> None:
    with tf.Graph().as_default() as graph:
        tf.raw_ops.CollectiveGather(
            input=tf.zeros([2]), group_size=3, group_key=5, instance_key=1, shape=[6]
        )
    gathered = found_in(graph)
    assert (gathered.operation, gathered.bytes, gathered.sent) == ("all_gather", 8, 16)
    assert gathered.reason == "CollectiveGather of group 5"
    with tf.Graph().as_default() as graph:
        made = tf.raw_ops.CollectiveInitializeCommunicator(group_key=8, rank=0, group_size=2)
        tf.raw_ops.CollectiveReduceV3(
            input=tf.zeros([2]), communicator=made, group_assignment=[[0, 1]], reduction="Add"
        )
    reduced = found_in(graph)
    assert (reduced.operation, reduced.sent) == ("all_reduce", 8)
    assert reduced.reason == "CollectiveReduceV3 of group 8"
    with tf.Graph().as_default() as graph:
        tf.raw_ops.CollectiveBcastRecvV2(
            group_size=2, group_key=9, instance_key=1, shape=[5], T=tf.float32, name="received"
        )
    received = found_in(graph)
    assert (received.operation, received.what, received.bytes) == ("broadcast", ("received",), 20)


def test_a_group_of_one_task_exchanges_nothing() -> None:
    with pytest.raises(AnalysisError, match="MultiWorkerMirroredStrategy each worker"):
        reductions(reducing(size=1))


def test_the_size_of_a_group_must_be_known() -> None:
    graph = reducing().as_graph_def()
    (node,) = (each for each in graph.node if each.op == "CollectiveReduceV2")
    node.input[1] = node.input[0]
    with pytest.raises(AnalysisError, match="the group_size of a collective is not a constant"):
        reductions(graph)


def test_unknown_operations_leave_sizes_unknown() -> None:
    graph = reducing().as_graph_def()
    graph.node.add(name="other", op="NobodyRegisteredThis")
    found = found_in(graph)
    assert (found.what, found.bytes, found.sent) == (("zeros",), None, None)


def test_a_cycle_is_no_graph() -> None:
    graph = reducing().as_graph_def()
    for name in ("one", "two"):
        graph.node.add(name=name, op="Identity", input=["two" if name == "one" else "one"])
    (node,) = (each for each in graph.node if each.op == "CollectiveReduceV2")
    node.input[0] = "one"
    with pytest.raises(AnalysisError, match="corrupt, or not a graph"):
        reductions(graph)


def test_damaged_inputs() -> None:
    graph = graph_pb2.GraphDef()
    graph.node.add(name="reduce", op="CollectiveReduceV2")
    with pytest.raises(AnalysisError, match="the group_size of a collective is not a constant"):
        reductions(graph)
    graph = reducing().as_graph_def()
    (size,) = (each for each in graph.node if each.name.endswith("group_size"))
    size.attr["value"].tensor.int_val[:] = [1, 2]
    with pytest.raises(AnalysisError):
        reductions(graph)
