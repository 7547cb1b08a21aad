"""Whether tensors are the same on all ranks."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdma_transport.tensorflow.groups import Group
from rdma_transport.tensorflow.operations import all_gather

_ROUNDING = 1e-5  # of the sum of absolute values


def digest(tensors: Sequence[Any]) -> Any:
    """Return a digest of all bits: a row of bytes, eight for each tensor."""
    parts = tf.nest.flatten(list(tensors), expand_composites=True)
    rows = [tf.raw_ops.Fingerprint(data=_as_row(each), method="farmhash64") for each in parts]
    return rows[0] if len(rows) == 1 else tf.concat(rows, 1)


def _as_row(tensor: Any) -> Any:
    return tf.reshape(tf.cast(tensor, tf.uint8) if tensor.dtype.is_bool else tensor, [1, -1])


def checked(tensors: Sequence[Any], equal: Any, message: str) -> list[Any]:
    """Return tensors; fail with `message` unless all ranks are `equal` to rank 0."""
    check = tf.debugging.Assert(tf.reduce_all(equal), [message, equal], summarize=1000)
    with tf.control_dependencies([] if check is None else [check]):
        return [tf.identity(each) for each in tensors]


def equal_digests(digests: Any) -> Any:
    """Return for each row whether it is the first one."""
    return tf.reduce_all(tf.equal(digests, digests[:1]), 1)


def same_on_all_ranks(tensors: Sequence[Any], group: Group, message: str) -> list[Any]:
    """Return the tensors; fail with `message` if the bits of the ranks differ."""
    if not tensors:
        return []
    return checked(tensors, equal_digests(all_gather(digest(tensors), group=group)), message)


def alike_on_all_ranks(tensors: Sequence[Any], group: Group, message: str) -> list[Any]:
    """Return the tensors; fail with `message` if those of the ranks differ by more than rounding.

    Ranks may have different processors, or numbers of threads. What is compared is a product with
    numbers that follow no pattern.
    """
    if not tensors:
        return []
    rows = all_gather(
        tf.expand_dims(tf.concat([_sketch(each) for each in tensors], 0), 0), group=group
    )
    products, sizes = rows[:, 0::2], rows[:, 1::2]
    far = tf.abs(products - products[:1]) > _ROUNDING * sizes[:1]
    finite = tf.math.is_finite(products)
    equal = tf.logical_not(tf.reduce_any(tf.logical_or(far, finite != finite[:1]), 1))
    return checked(tensors, equal, message)


def _sketch(tensor: Any) -> Any:
    """Return a product of the tensor with fixed numbers, and the sum of absolute values."""
    flat = tf.reshape(tensor, [-1])
    values = tf.math.real(flat) + tf.math.imag(flat) if tensor.dtype.is_complex else flat
    values = tf.cast(values, tf.float32)
    fixed = tf.sin(tf.range(tf.size(values), dtype=tf.float32) * 12.9898)
    return tf.stack([tf.reduce_sum(values * fixed), tf.reduce_sum(tf.abs(values))])
