"""Measures steps of two ranks, and takes one apart. Rank 0 prints what came of it."""

import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

import rdma_transport.horovod as hvd
import rdma_transport.tensorflow as rt
from graph_analyzer import AnalysisError
from graph_analyzer.apart import isolate
from graph_analyzer.overlap import _replayed, measure
from graph_analyzer.reductions import operations_in
from rdma_transport.tensorflow import schemes

hvd.init()
rank, ranks = hvd.rank(), hvd.size()
matrix = tf.Variable(tf.random.stateless_normal([512, 512], [1, 2]), name="matrix")
bias = tf.Variable(tf.zeros([512]), name="bias")
both = [matrix, bias]
rows = tf.random.stateless_normal([8, 512], [3, 4])


def layer(x: Any) -> Any:
    return tf.tanh(x @ matrix + bias)


def apply(gradients: Any) -> list[Any]:
    for variable, gradient in zip(both, gradients, strict=True):
        variable.assign_sub(gradient)
    return list(gradients)


def loss_gradients(forward: Any, x: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(forward(x) ** 2)
    return tape, loss


@tf.function
def taped(x: Any) -> Any:
    """Each rank has other rows."""
    tape, loss = loss_gradients(layer, x + float(rank + 1) * rows)
    return apply(hvd.DistributedGradientTape(tape).gradient(loss, both))


forward = rt.parallel(layer)


@tf.function
def whole(x: Any) -> Any:
    """Each rank has the same rows, and computes some of them. Compares the ranks."""
    tape, loss = loss_gradients(forward, x + rows)
    return apply(tape.gradient(loss, both))


@tf.function
def nested(x: Any) -> Any:
    inner = tf.function(lambda y: rt.all_reduce(y) + rt.all_gather(y)[:8])
    return inner(x), rt.broadcast(x, root=1)


@tf.function
def looped(x: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, rt.all_reduce(y)), [0, x])


@tf.function
def fails(x: Any) -> Any:
    """Inputs are zeros."""
    with tf.control_dependencies([tf.debugging.check_numerics(1.0 / x, "x is 0")]):
        return rt.all_reduce(x)


def traced(function: Any) -> Any:
    return function.get_concrete_function(tf.TensorSpec([8, 512]))


def measured(function: Any) -> Any:
    before = [each.numpy() for each in both]
    try:
        found = measure(function, operations_in(function), 6).as_dict()
    except AnalysisError as error:
        return str(error)
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(before, both, strict=True))
    return found


def alone() -> list[bool]:
    """Whether rank 0 can take steps while the other one takes none, and what they change."""
    own = [rt.new_group([each]) for each in range(ranks)][rank]
    found = []
    for function, of_one in ((taped, rows), (whole, rows[:4])):
        step = _replayed(traced(function), lambda graph: isolate(graph, own.number, ranks))
        if rank == 0:
            with tf.GradientTape() as tape:
                # A rank by itself has its part of the rows, as often as there are ranks.
                loss = tf.reduce_sum(layer(of_one) ** 2)
            expected = tape.gradient(loss, both)
            before = [each.numpy() for each in both]
            step()
            changes = [a - b.numpy() for a, b in zip(before, both, strict=True)]
            pairs = zip(changes, expected, strict=True)
            found.append(all(np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs))
    rt.barrier(name="rank 0 is done")
    return found


answers: dict[str, Any] = {"alone": alone()}
for scheme in ("dense", "factors", "bf16"):
    os.environ["RDMA_TRANSPORT_GRADIENTS"] = scheme
    schemes.gradient_scheme.cache_clear()
    answers[scheme] = measured(tf.function(taped.python_function).get_concrete_function(rows))
answers["whole"] = measured(traced(whole))
answers["nested"] = measured(traced(nested))
answers["looped"] = measured(traced(looped))
answers["fails"] = measured(traced(fails))
answers["no function"] = measured(traced(nested).graph)
answers["unknown input"] = measured(taped.get_concrete_function(tf.TensorSpec([None, 512])))
if rank == 0:
    print(json.dumps(answers))
