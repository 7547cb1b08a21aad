"""The models have the sizes that were published, and a step moves what it must and nothing else."""

import functools
from math import isfinite, prod
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bench.models import MODELS, Model
from bench.models.model import Variables, zeros
from bench.models.training import TrainingGraph, declared, place, training_graph
from bench.support.session import config

pytestmark = pytest.mark.timeout(60)
v1 = tf.compat.v1
MIB = 2**20
PS = "/job:ps/task:0"
WORKERS = ["/job:worker/task:0", "/job:worker/task:1"]

# How many variables, and MiB as in workloads.md.
PUBLISHED = {
    "alexnet": (16, 176.42),
    "inception_v3": (196, 92.90),
    "vgg16": (32, 512.32),
    "lstm": (14, 35.93),
    "gru": (11, 27.92),
    "fcn5": (10, 204.47),
}


@functools.cache
def built(name: str) -> TrainingGraph:
    return training_graph(MODELS[name], batch=2, workers=WORKERS, servers=[PS])


def sizes_of(name: str) -> list[int]:
    """The numbers in each variable."""
    return [prod(variable.shape) for variable in built(name).variables]


def test_the_names() -> None:
    assert set(MODELS) == set(PUBLISHED)
    assert all(name == model.name for name, model in MODELS.items())


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_variables_are_those_of_the_publication(name: str) -> None:
    sizes = sizes_of(name)
    assert (len(sizes), round(4 * sum(sizes) / MIB, 2)) == PUBLISHED[name]
    assert (MODELS[name].variables, MODELS[name].mib) == PUBLISHED[name]
    made = [node for node in built(name).graph.as_graph_def().node if node.op == "VarHandleOp"]
    assert {node.attr["dtype"].type for node in made} == {tf.float32.as_datatype_enum}
    shapes = [[dimension.size for dimension in node.attr["shape"].shape.dim] for node in made]
    told = [(variable.name, variable.shape, variable.device) for variable in built(name).variables]
    assert told == [
        (node.name, tuple(shape), node.device) for node, shape in zip(made, shapes, strict=True)
    ]


def test_variables_go_to_the_least_loaded_server() -> None:
    assert place([3, 5, 5, 1, 2], ["x", "y"]) == ["x", "x", "y", "y", "y"]
    # fc6 of VGG has 392 of 512 MiB, so that all others together are still less.
    servers = ["/job:ps/task:0", "/job:ps/task:1"]
    wanted = declared(MODELS["vgg16"])
    places = place([variable.bytes for variable in wanted], servers)
    alone = [variable.name for variable, at in zip(wanted, places, strict=True) if at == servers[0]]
    assert alone == ["fc6/weights"]


def losses_of_steps(made: TrainingGraph, steps: int) -> list[list[float]]:
    with v1.Session(graph=made.graph, config=config()) as session:
        session.run(made.initializer)
        return [session.run([made.losses, made.train])[0] for _ in range(steps)]


@pytest.mark.parametrize("name", ["fcn5", "gru"])
def test_a_step_trains(name: str) -> None:
    made = training_graph(MODELS[name], batch=2, workers=["/cpu:0"] * 2, servers=["/cpu:0"])
    first, second = losses_of_steps(made, 2)
    for before, after in zip(first, second, strict=True):
        assert isfinite(before)
        assert isfinite(after)
        assert before != after
    assert first[0] != first[1], "each worker has a batch of its own"
    assert np.array_equal([first, second], losses_of_steps(made, 2)), "equal bit for bit"


def test_the_gradients_of_all_workers_are_summed() -> None:
    batches: list[Any] = []

    def loss(features: Any, labels: Any, get: Variables) -> Any:
        batches.append(features)
        return tf.reduce_sum(features * get("w", [5], zeros))

    model = Model("plane", (5,), 2, None, loss, variables=1, mib=0)
    made = training_graph(
        model, batch=3, workers=["/cpu:0"] * 3, servers=["/cpu:0"], learning_rate=0.5
    )
    of_workers = batches[-3:]  # those before are of the graph that only counts variables
    with v1.Session(graph=made.graph, config=config()) as session:
        session.run(made.initializer)
        before = session.run(of_workers)
        session.run(made.train)
        (weights,) = session.run([made.graph.get_tensor_by_name("w/Read/ReadVariableOp:0")])
        assert np.array_equal(before, session.run(of_workers)), "the same batch in every step"
    assert len({batch.tobytes() for batch in before}) == 3
    np.testing.assert_allclose(weights, -0.5 * np.sum(before, axis=(0, 1)), rtol=1e-5)
