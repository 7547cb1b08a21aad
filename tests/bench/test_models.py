"""The models have the sizes that were published, and a step moves what it must and nothing else."""

import functools
import subprocess
import sys
from collections import Counter
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bench.models import MODELS, Model
from bench.models.model import Variables, zeros
from bench.models.training import TrainingGraph, declared, place, training_graph
from bench.support.session import config
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(60)
v1 = tf.compat.v1
MIB = 2**20
PS = "/job:ps/task:0"
WORKERS = ["/job:worker/task:0", "/job:worker/task:1"]

# Every layer below is written down by hand: (numbers in the weights, outputs with a bias each).
Layer = tuple[int, int]

ALEXNET: list[Layer] = [
    (11 * 11 * 3 * 64, 64),
    (5 * 5 * 64 * 192, 192),
    (3 * 3 * 192 * 384, 384),
    (3 * 3 * 384 * 384, 384),
    (3 * 3 * 384 * 256, 256),
    (5 * 5 * 256 * 4096, 4096),  # 5 x 5 pixels are left of 224 x 224
    (4096 * 4096, 4096),
    (4096 * 10, 10),
]

VGG16: list[Layer] = [
    (3 * 3 * 3 * 64, 64),
    (3 * 3 * 64 * 64, 64),
    (3 * 3 * 64 * 128, 128),
    (3 * 3 * 128 * 128, 128),
    (3 * 3 * 128 * 256, 256),
    (3 * 3 * 256 * 256, 256),
    (3 * 3 * 256 * 256, 256),
    (3 * 3 * 256 * 512, 512),
    (3 * 3 * 512 * 512, 512),
    (3 * 3 * 512 * 512, 512),
    (3 * 3 * 512 * 512, 512),
    (3 * 3 * 512 * 512, 512),
    (3 * 3 * 512 * 512, 512),
    (7 * 7 * 512 * 4096, 4096),
    (4096 * 4096, 4096),
    (4096 * 10, 10),
]

FCN5: list[Layer] = [
    (784 * 4096, 4096),
    (4096 * 4096, 4096),
    (4096 * 4096, 4096),
    (4096 * 4096, 4096),
    (4096 * 10, 10),
]

# Of Inception: (height, width, inputs, outputs) of each convolution, a line per branch.
STEM = [(3, 3, 3, 32), (3, 3, 32, 32), (3, 3, 32, 64), (1, 1, 64, 80), (3, 3, 80, 192)]
MIXED_5B = [
    *[(1, 1, 192, 64)],
    *[(1, 1, 192, 48), (5, 5, 48, 64)],
    *[(1, 1, 192, 64), (3, 3, 64, 96), (3, 3, 96, 96)],
    *[(1, 1, 192, 32)],
]  # 64 + 64 + 96 + 32 = 256
MIXED_5C = [
    *[(1, 1, 256, 64)],
    *[(1, 1, 256, 48), (5, 5, 48, 64)],
    *[(1, 1, 256, 64), (3, 3, 64, 96), (3, 3, 96, 96)],
    *[(1, 1, 256, 64)],
]  # 64 + 64 + 96 + 64 = 288
MIXED_5D = [
    *[(1, 1, 288, 64)],
    *[(1, 1, 288, 48), (5, 5, 48, 64)],
    *[(1, 1, 288, 64), (3, 3, 64, 96), (3, 3, 96, 96)],
    *[(1, 1, 288, 64)],
]  # 288
MIXED_6A = [
    *[(3, 3, 288, 384)],
    *[(1, 1, 288, 64), (3, 3, 64, 96), (3, 3, 96, 96)],
]  # 384 + 96 + 288 pooled = 768
MIXED_6B = [
    *[(1, 1, 768, 192)],
    *[(1, 1, 768, 128), (1, 7, 128, 128), (7, 1, 128, 192)],
    *[(1, 1, 768, 128), (7, 1, 128, 128), (1, 7, 128, 128), (7, 1, 128, 128), (1, 7, 128, 192)],
    *[(1, 1, 768, 192)],
]  # 4 x 192 = 768
MIXED_6C = [
    *[(1, 1, 768, 192)],
    *[(1, 1, 768, 160), (1, 7, 160, 160), (7, 1, 160, 192)],
    *[(1, 1, 768, 160), (7, 1, 160, 160), (1, 7, 160, 160), (7, 1, 160, 160), (1, 7, 160, 192)],
    *[(1, 1, 768, 192)],
]
MIXED_6D = MIXED_6C
MIXED_6E = [
    *[(1, 1, 768, 192)],
    *[(1, 1, 768, 192), (1, 7, 192, 192), (7, 1, 192, 192)],
    *[(1, 1, 768, 192), (7, 1, 192, 192), (1, 7, 192, 192), (7, 1, 192, 192), (1, 7, 192, 192)],
    *[(1, 1, 768, 192)],
]
MIXED_7A = [
    *[(1, 1, 768, 192), (3, 3, 192, 320)],
    *[(1, 1, 768, 192), (1, 7, 192, 192), (7, 1, 192, 192), (3, 3, 192, 192)],
]  # 320 + 192 + 768 pooled = 1280
MIXED_7B = [
    *[(1, 1, 1280, 320)],
    *[(1, 1, 1280, 384), (1, 3, 384, 384), (3, 1, 384, 384)],
    *[(1, 1, 1280, 448), (3, 3, 448, 384), (1, 3, 384, 384), (3, 1, 384, 384)],
    *[(1, 1, 1280, 192)],
]  # 320 + 2 x 384 + 2 x 384 + 192 = 2048
MIXED_7C = [
    *[(1, 1, 2048, 320)],
    *[(1, 1, 2048, 384), (1, 3, 384, 384), (3, 1, 384, 384)],
    *[(1, 1, 2048, 448), (3, 3, 448, 384), (1, 3, 384, 384), (3, 1, 384, 384)],
    *[(1, 1, 2048, 192)],
]
AUXILIARY = [(1, 1, 768, 128), (5, 5, 128, 768)]
INCEPTION = [
    *STEM,
    *[*MIXED_5B, *MIXED_5C, *MIXED_5D],
    *[*MIXED_6A, *MIXED_6B, *MIXED_6C, *MIXED_6D, *MIXED_6E],
    *[*MIXED_7A, *MIXED_7B, *MIXED_7C],
    *AUXILIARY,
]


def sizes_of(layers: list[Layer]) -> list[int]:
    return [numbers for layer in layers for numbers in layer]


def sizes_of_inception() -> list[int]:
    # One offset per filter; two heads with a bias.
    convolutions = [(prod(kernel), kernel[3]) for kernel in INCEPTION]
    return sizes_of([*convolutions, (2048 * 10, 10), (768 * 10, 10)])


def sizes_of_recurrent(gates: int) -> list[int]:
    return [1024 * 1024, 1024 * 1024, 1024] * gates + [1024 * 1000, 1000]


# Model: the numbers in each variable, how many variables, MiB as in workloads.md.
EXPECTED: dict[str, tuple[list[int], int, float]] = {
    "alexnet": (sizes_of(ALEXNET), 16, 176.42),
    "inception_v3": (sizes_of_inception(), 196, 92.90),
    "vgg16": (sizes_of(VGG16), 32, 512.32),
    "lstm": (sizes_of_recurrent(4), 14, 35.93),
    "gru": (sizes_of_recurrent(3), 11, 27.92),
    "fcn5": (sizes_of(FCN5), 10, 204.47),
}


@functools.cache
def built(name: str) -> TrainingGraph:
    return training_graph(MODELS[name], batch=2, workers=WORKERS, servers=[PS])


def task_of(node: Any) -> str:
    return node.device.partition("/device:")[0]


def test_the_names() -> None:
    assert set(MODELS) == set(EXPECTED)
    assert all(name == model.name for name, model in MODELS.items())


@pytest.mark.parametrize("name", EXPECTED)
def test_the_variables_are_those_of_the_publication(name: str) -> None:
    sizes, count, mib = EXPECTED[name]
    assert len(sizes) == count
    assert round(4 * sum(sizes) / MIB, 2) == mib
    assert (MODELS[name].variables, MODELS[name].mib) == (count, mib)
    made = [node for node in built(name).graph.as_graph_def().node if node.op == "VarHandleOp"]
    shapes = [[dimension.size for dimension in node.attr["shape"].shape.dim] for node in made]
    assert Counter(prod(shape) for shape in shapes) == Counter(sizes)
    assert {node.attr["dtype"].type for node in made} == {tf.float32.as_datatype_enum}
    told = [(variable.name, variable.shape, variable.device) for variable in built(name).variables]
    assert told == [
        (node.name, tuple(shape), node.device) for node, shape in zip(made, shapes, strict=True)
    ]


@pytest.mark.parametrize("name", EXPECTED)
def test_nothing_crosses_but_weights_and_gradients(name: str) -> None:
    """Each worker gets every variable once and sends one gradient for it.

    Nothing else: batches and losses stay on the worker, the learning rate and the sums on the
    server, and the group that ends the step is on the server like all that it waits for.
    """
    definition = built(name).graph.as_graph_def()
    nodes = {node.name: node for node in definition.node}
    assert {task_of(node) for node in definition.node} == {PS, *WORKERS}
    tensors, waits = set(), set()
    for node in definition.node:
        for colocated in node.attr["_class"].list.s:
            assert task_of(nodes[colocated.decode().removeprefix("loc:@")]) == task_of(node)
        for edge in node.input:
            producer = nodes[edge.lstrip("^").partition(":")[0]]
            if task_of(producer) == task_of(node):
                continue
            if edge.startswith("^"):
                waits.add((edge, task_of(node)))
            else:
                tensors.add((edge, task_of(node), producer.op, task_of(producer)))
    variables = EXPECTED[name][1]
    assert waits == set()
    to_workers = Counter(to for _, to, op, _ in tensors if op == "ReadVariableOp")
    assert to_workers == dict.fromkeys(WORKERS, variables)
    to_server = Counter(came for _, to, _, came in tensors if to == PS)
    assert to_server == dict.fromkeys(WORKERS, variables)
    assert len(tensors) == 4 * variables


def test_two_builds_are_equal() -> None:
    again = training_graph(MODELS["gru"], batch=2, workers=WORKERS, servers=[PS])
    assert again.graph.as_graph_def() == built("gru").graph.as_graph_def()


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


def test_the_names_need_no_tensorflow() -> None:
    code = "import sys, bench.models; assert 'tensorflow' not in sys.modules"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=patient(30))
