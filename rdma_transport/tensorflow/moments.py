"""Mean and variance over the batches of all ranks."""

from typing import Any

import tensorflow as tf

from rdma_transport.tensorflow.groups import Group
from rdma_transport.tensorflow.operations import all_reduce


def moments_of_all_ranks(
    inputs: Any,
    axes: list[int],
    keep: bool,
    mask: Any = None,
    group: Group | None = None,
    *,
    counts: Any = True,
) -> tuple[Any, Any]:
    """Return the mean and variance over `axes`, which are kept or not, of what the mask leaves.

    Those of other ranks only if the inputs of this one do not count.
    """
    kind = inputs.dtype
    values = tf.cast(inputs, tf.float32) if kind in (tf.float16, tf.bfloat16) else inputs
    if mask is None:
        shape = tf.gather(tf.shape(values), axes)
        count = tf.cast(tf.reduce_prod(shape), values.dtype)
        total = tf.reduce_sum(values, axes)
        squares = tf.reduce_sum(tf.square(values), axes)
    else:
        weights = tf.cast(mask, values.dtype)
        while weights.shape.rank < values.shape.rank:
            weights = tf.expand_dims(weights, -1)
        count = tf.reduce_sum(weights)  # a mask has no channels
        total = tf.reduce_sum(values * weights, axes)
        squares = tf.reduce_sum(tf.square(values) * weights, axes)
    flat = tf.reshape(total, [-1])
    packed = tf.concat([flat, tf.reshape(squares, [-1]), [count]], 0)
    packed = packed if counts is True else packed * tf.cast(counts, packed.dtype)
    reduced = all_reduce(packed, "sum", group=group)
    number = tf.size(flat)
    divisor = reduced[-1]
    mean = tf.reshape(reduced[:number] / divisor, tf.shape(total))
    square = tf.reshape(reduced[number : 2 * number] / divisor, tf.shape(total))
    variance = tf.maximum(square - tf.square(mean), 0)
    mean.set_shape(total.shape)
    variance.set_shape(total.shape)
    if keep:
        for axis in sorted(each % values.shape.rank for each in axes):
            mean, variance = tf.expand_dims(mean, axis), tf.expand_dims(variance, axis)
    return tf.cast(mean, kind), tf.cast(variance, kind)
