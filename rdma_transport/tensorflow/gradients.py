"""Gradients of the operations. The loss is the sum of the losses of all ranks."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rdma_transport.tensorflow.groups import group_of
from rdma_transport.tensorflow.operations import (
    all_gather,
    all_to_all,
    grouped_all_gather,
    grouped_all_reduce,
    place_in,
)


def register() -> None:
    """Register them with TensorFlow. Once in a process."""
    functions: dict[str, Callable[..., Any]] = {
        "AllReduce": _of_all_reduce,
        "ReduceScatter": _of_reduce_scatter,
        "AllGather": _of_all_gather,
        "Broadcast": _of_broadcast,
        "AllToAll": _of_all_to_all,
        "Deliver": _of_deliver,
    }
    for name, function in functions.items():
        tf.RegisterGradient(f"RdmaTransport{name}")(function)


def _reduction_of(operation: Any) -> dict[str, Any]:
    """The same reduction, for the gradients of its results."""
    op = operation.get_attr("op").decode()
    if op != "sum":
        raise LookupError(f"a reduction by {op!r} has no gradient; sum and average have")
    return {
        "op": "average" if operation.get_attr("average") else "sum",
        "prescale": float(operation.get_attr("prescale")),
        "postscale": float(operation.get_attr("postscale")),
    }


def _typed(operation: Any, gradients: tuple[Any, ...]) -> list[Any]:
    """Return gradients in the type of the outputs: a user may give one of them in another."""
    kinds = [output.dtype for output in operation.outputs]
    return [tf.cast(each, kind) for each, kind in zip(gradients, kinds, strict=False)]


def _of_all_reduce(operation: Any, *gradients: Any) -> list[Any]:
    group = group_of(operation.get_attr("group"))
    given = _typed(operation, gradients)
    return grouped_all_reduce(given, group=group, **_reduction_of(operation))


def _of_reduce_scatter(operation: Any, *gradients: Any) -> list[Any]:
    group = group_of(operation.get_attr("group"))
    reduction = _reduction_of(operation)
    scale = reduction["prescale"] * reduction["postscale"]
    gathered = grouped_all_gather(_typed(operation, gradients), group=group)
    if reduction["op"] == "average":
        size = tf.cast(place_in(group)[1], tf.float64)
        return [each * tf.cast(scale / size, each.dtype) for each in gathered]
    return [each if scale == 1.0 else each * tf.constant(scale, each.dtype) for each in gathered]


def _of_all_gather(operation: Any, *gradients: Any) -> list[Any]:
    group = group_of(operation.get_attr("group"))
    inputs, rows = list(operation.inputs), operation.outputs[-1]
    if len(inputs) > 1:  # the rows of the first are known
        own = tf.stack([tf.shape(each, tf.int64)[0] for each in inputs])
        table = all_gather(tf.expand_dims(own, 0), group=group)
    else:
        table = tf.expand_dims(rows, 1)
    reduced = grouped_all_reduce(_typed(operation, gradients[:-1]), group=group)
    rank, _ = place_in(group)
    first = tf.reduce_sum(table[:rank], 0)
    last = first + table[rank]
    return [each[first[i] : last[i]] for i, each in enumerate(reduced)]


def _of_broadcast(operation: Any, gradient: Any) -> Any:
    group = group_of(operation.get_attr("group"))
    (reduced,) = grouped_all_reduce([gradient], group=group)
    rank, _ = place_in(group)
    root = operation.get_attr("root")
    if isinstance(rank, tf.Tensor):
        return tf.where(tf.equal(rank, root), reduced, tf.zeros_like(reduced))
    if rank == root:
        return reduced
    with tf.control_dependencies([reduced]):  # the root waits for it
        return tf.zeros_like(gradient)


def _of_all_to_all(operation: Any, gradient: Any, _: Any) -> tuple[Any, None]:
    group = group_of(operation.get_attr("group"))
    return all_to_all(gradient, operation.outputs[1], group=group)[0], None


def _of_deliver(_: Any, *gradients: Any) -> list[Any]:
    return list(gradients)
