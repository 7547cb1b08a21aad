"""One synchronous data-parallel training step over parameter servers and workers, as a graph."""

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from .model import BEFORE_RELU, Initializer, Model

FLOAT_BYTES = 4


class Declared(NamedTuple):
    """A variable that a model asks for."""

    name: str
    shape: tuple[int, ...]
    initializer: Initializer

    @property
    def bytes(self) -> int:
        """The length of its value."""
        return prod(self.shape) * FLOAT_BYTES


class Placed(NamedTuple):
    """A variable of a graph."""

    name: str
    shape: tuple[int, ...]
    device: str


@dataclass(frozen=True)
class TrainingGraph:
    """What to run. Within one run of `train`, the losses are those before the update."""

    graph: Any
    initializer: Any
    train: Any
    losses: list[Any]  # one per worker
    variables: list[Placed]


def declared(model: Model) -> list[Declared]:
    """The variables of a model, in the order in which it asks for them."""
    import tensorflow as tf

    found: dict[str, Declared] = {}

    def get(name: str, shape: Sequence[int], initializer: Initializer = BEFORE_RELU) -> Any:
        if name in found:
            raise ValueError(f"{model.name} asks twice for {name}")
        found[name] = Declared(name, tuple(shape), initializer)
        return tf.compat.v1.placeholder(tf.float32, shape)

    with tf.Graph().as_default():
        features = tf.compat.v1.placeholder(tf.float32, model.features_shape(1))
        model.loss(features, tf.compat.v1.placeholder(tf.int32, [1]), get)
    return list(found.values())


def place(sizes: Sequence[int], servers: Sequence[str]) -> list[str]:
    """A server for each size: the largest first, each to the server with least, ties by index."""
    loads = [0] * len(servers)
    chosen = [""] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        server = loads.index(min(loads))
        loads[server] += sizes[index]
        chosen[index] = servers[server]
    return chosen


def training_graph(
    model: Model,
    *,
    batch: int,
    workers: Sequence[str],
    servers: Sequence[str],
    learning_rate: float = 0.01,
    seed: int = 1,
) -> TrainingGraph:
    """Build the step, with an explicit device for every operation.

    `workers` and `servers` are device strings, `batch` is per worker. Each worker has a batch of
    its own, the same in every step. Gradients are summed, not averaged, in the order of `workers`.
    Initial values depend on `seed` and the model, not on where the variables are.

    Two runs are equal bit for bit if sessions have `bench.support.session.config()`. With
    TensorFlow's arithmetic optimizer they are not: it makes sums of many out of sums of two.
    """
    import tensorflow as tf

    wanted = declared(model)
    places = place([variable.bytes for variable in wanted], servers)
    graph = tf.Graph()
    with graph.as_default():
        variables = [
            _variable(variable, server, [seed, index])
            for index, (variable, server) in enumerate(zip(wanted, places, strict=True))
        ]
        losses, gradients = [], []
        for index, worker in enumerate(workers):
            weights = {
                variable.name: _read(handle, server, worker)
                for variable, handle, server in zip(wanted, variables, places, strict=True)
            }
            with tf.device(worker):
                loss = _loss(model, batch, weights, seed, index)
                losses.append(loss)
                gradients.append(
                    tf.gradients(
                        loss,
                        list(weights.values()),
                        # By pairs: AddN begins with any input that has no other reference at that
                        # moment, so its sums of three or more differ from run to run.
                        aggregation_method=tf.AggregationMethod.EXPERIMENTAL_TREE,
                    )
                )
        updates = []
        for variable, server, parts in zip(
            variables, places, zip(*gradients, strict=True), strict=True
        ):
            with tf.device(server):
                # One fixed order of summation: the result does not depend on who is first.
                total = functools.reduce(operator.add, parts)
                updates.append(
                    tf.raw_ops.ResourceApplyGradientDescent(
                        var=variable.handle, alpha=learning_rate, delta=total
                    )
                )
        with tf.device(servers[0]):
            train = tf.group(*updates)
            initializer = tf.compat.v1.global_variables_initializer()
    homeless = [operation.name for operation in graph.get_operations() if not operation.device]
    if homeless:
        raise AssertionError(f"{model.name}: without a device: {homeless}")
    placed = [
        Placed(variable.name, variable.shape, server)
        for variable, server in zip(wanted, places, strict=True)
    ]
    return TrainingGraph(graph, initializer, train, losses, placed)


def _variable(wanted: Declared, server: str, seed: Sequence[int]) -> Any:
    import tensorflow as tf

    def initial(shape: Sequence[int], dtype: Any = None) -> Any:
        # TensorFlow calls this outside of all device scopes.
        with tf.device(server):
            return wanted.initializer(shape, seed)

    with tf.device(server):
        return tf.compat.v1.get_variable(
            wanted.name, wanted.shape, tf.float32, initial, use_resource=True
        )


def _read(variable: Any, server: str, worker: str) -> Any:
    """The variable's value on the worker.

    Not by `variable.read_value()`, which puts the read itself on the worker until TensorFlow's
    placer moves it to the variable: the graph would not say what crosses.
    """
    import tensorflow as tf

    with tf.device(server):
        value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
    with tf.device(worker):
        return tf.identity(value)


def _loss(model: Model, batch: int, weights: dict[str, Any], seed: int, worker: int) -> Any:
    """The loss of the worker's own synthetic batch."""
    import tensorflow as tf

    def get(name: str, shape: Sequence[int], initializer: Initializer = BEFORE_RELU) -> Any:
        weight = weights[name]
        if weight.shape != tuple(shape):
            raise ValueError(f"{model.name}: {name} is {weight.shape}, asked for {tuple(shape)}")
        return weight

    # Negative, because the variables have the seeds from 0 on.
    features_seed, labels_seed = [seed, -2 * worker - 1], [seed, -2 * worker - 2]
    features = tf.random.stateless_normal(
        model.features_shape(batch), seed=features_seed, stddev=model.deviation
    )
    labels = tf.random.stateless_uniform(
        [batch], seed=labels_seed, maxval=model.classes, dtype=tf.int32
    )
    return model.loss(features, labels, get)
