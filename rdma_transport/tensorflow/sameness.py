"""Whether tensors are the same on all ranks."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdma_transport.tensorflow.groups import Group
from rdma_transport.tensorflow.notes import COMPARISON, describe
from rdma_transport.tensorflow.operations import all_gather, place_in

_ROUNDING = 1e-5  # of the sum of absolute values


def digest(tensors: Sequence[Any]) -> Any:
    """Return a digest of all bits: a row of bytes, eight for each tensor."""
    parts = tf.nest.flatten(list(tensors), expand_composites=True)
    rows = [tf.raw_ops.Fingerprint(data=_as_row(each), method="farmhash64") for each in parts]
    row = rows[0] if len(rows) == 1 else tf.concat(rows, 1)
    return describe(row, what=COMPARISON)


def _as_row(tensor: Any) -> Any:
    return tf.reshape(tf.cast(tensor, tf.uint8) if tensor.dtype.is_bool else tensor, [1, -1])


def checked(tensors: Sequence[Any], equal: Any, message: str) -> list[Any]:
    """Return tensors; fail with `message` unless all ranks are `equal` to rank 0."""
    check = tf.debugging.Assert(tf.reduce_all(equal), [message, equal], summarize=1000)
    with tf.control_dependencies([] if check is None else [check]):
        return [None if each is None else tf.identity(each) for each in tensors]


def equal_digests(digests: Any) -> Any:
    """Return for each row whether it is the first one."""
    return tf.reduce_all(tf.equal(digests, digests[:1]), 1)


def same_on_all_ranks(tensors: Sequence[Any], group: Group, message: str) -> list[Any]:
    """Return the tensors; fail with `message` if the bits of the ranks differ."""
    if not tensors:
        return []
    return checked(tensors, equal_digests(all_gather(digest(tensors), group=group)), message)


def sketch(tensors: Sequence[Any], group: Group) -> Any:
    """Return a short description of tensors, as this rank's row of a table.

    All other rows are zeros, so that the sum over the ranks is the table of all.
    """
    own = tf.concat([tf.zeros([0]), *(_sketch(each) for each in tensors)], 0)
    rank, size = place_in(group)
    table = tf.scatter_nd([[rank]], [own], [size, 2 * len(tensors)])
    return describe(table, what=COMPARISON)


def alike(table: Any) -> Any:
    """Return for each rank whether its row of sketches is that of rank 0, within rounding.

    Ranks may have different processors, or numbers of threads.
    """
    products, sizes = table[:, 0::2], table[:, 1::2]
    far = tf.abs(products - products[:1]) > _ROUNDING * sizes[:1]
    finite = tf.math.is_finite(products)
    return tf.logical_not(tf.reduce_any(tf.logical_or(far, tf.not_equal(finite, finite[:1])), 1))


def _sketch(tensor: Any) -> Any:
    """Return a product with numbers that follow no pattern, and the sum of absolute values."""
    flat = tf.reshape(tensor, [-1])
    values = tf.math.real(flat) + tf.math.imag(flat) if tensor.dtype.is_complex else flat
    values = tf.cast(values, tf.float32)
    fixed = tf.sin(tf.range(tf.size(values), dtype=tf.float32) * 12.9898)
    return tf.stack([tf.reduce_sum(values * fixed), tf.reduce_sum(tf.abs(values))])
