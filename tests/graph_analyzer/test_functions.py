"""Functions and Keras models, whose variables are on tasks already."""

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from bench.support.cluster import Cluster
from graph_analyzer import AnalysisError, Plan, analyze
from tests.support import forked
from tests.support.planned import CLUSTER, PS, SIDE, W0, links, use

pytestmark = pytest.mark.timeout(120)

STRATEGY = """
import json, os, sys, tensorflow as tf, tf_keras as keras
from graph_analyzer import analyze
os.environ["TF_CONFIG"] = sys.argv[1]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    layers = [keras.layers.Dense(256), keras.layers.BatchNormalization(), keras.layers.Dense(256)]
    model = keras.Sequential([keras.layers.Input([64]), *layers])

@tf.function(input_signature=[tf.TensorSpec([None, 64])])
def forward(inputs):
    return layers[0](inputs)

cluster = json.loads(sys.argv[1])["cluster"]
worker = "/job:worker/task:0"
for graph in (model, forward.get_concrete_function()):
    print(analyze(graph, cluster, default_device="" if graph is model else worker).to_json())
os._exit(0)
"""


def test_a_model_and_a_function_under_a_strategy(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STRATEGY)
    with Cluster({"ps": 2, "worker": 1, "chief": 1}, without=[("chief", 0)]) as cluster:
        config = {
            "cluster": cluster.spec,
            "task": {"type": "chief", "index": 0},
            "rpc_layer": "rdma",
        }
        ran = forked.run([str(script), json.dumps(config)], timeout=90)
    assert ran.returncode == 0, ran.stderr[-3000:]
    model, function = (Plan.from_json(line) for line in ran.stdout.splitlines()[-2:])

    def kernels(source: str) -> set[tuple[Any, str]]:
        return {(edge.shape, edge.mode) for edge in model.tensors if source in edge.source}

    # Weights to the worker and gradients back, of both layers, and their biases.
    small = ((256,), "inline")
    assert (
        kernels("ps") == kernels("worker") == {((64, 256), "static"), ((256, 256), "static"), small}
    )
    assert len({variable.task for variable in model.variables}) == 2, "one on each server"
    assert {(edge.shape, edge.site.kind) for edge in function.tensors} == {
        ((64, 256), "variable"),
        ((256,), "variable"),
    }


def test_a_function_of_a_process_without_a_cluster() -> None:
    """Nothing says where its variables are, so they are on the default device."""
    weights = tf.Variable(tf.zeros([SIDE, SIDE]))
    function = tf.function(lambda: use(weights + 1.0), input_signature=[])
    plan = analyze(function.get_concrete_function(), CLUSTER, default_device=PS)
    assert links(plan.tensors)[PS, W0] == 1
    (variable,) = plan.variables
    assert (variable.task, variable.shape) == (PS, (SIDE, SIDE))


def test_a_plan_without_crossing_tensors_says_why() -> None:
    weights = tf.Variable(tf.zeros([SIDE, SIDE]))
    function = tf.function(lambda: weights + 1.0, input_signature=[])
    plan = analyze(function.get_concrete_function(), CLUSTER, default_device=PS)
    assert plan.edges == ()
    assert "operations are on one task" in plan.why_empty
    assert f"variables are on {PS}" in plan.why_empty


def test_a_model_without_inputs_is_refused() -> None:
    import tf_keras as keras

    with pytest.raises(AnalysisError, match="has no inputs yet"):
        analyze(keras.Sequential([keras.layers.Dense(3)]), CLUSTER)
