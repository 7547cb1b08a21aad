"""Sums of gradients over the ranks."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdma_transport.tensorflow.groups import Group, world
from rdma_transport.tensorflow.operations import all_reduce, grouped_all_reduce
from rdma_transport.tensorflow.schemes import gradient_scheme

# Of smaller gradients, the time goes into starting operations: they are reduced together.
_SMALL = 64 * 1024  # bytes


def is_small(gradient: Any) -> bool:
    """Return whether to reduce a gradient together with others."""
    if isinstance(gradient, tf.IndexedSlices):
        return False
    count = gradient.shape.num_elements()
    return count is not None and count * gradient.dtype.size < _SMALL


def sum_gradients(gradients: Sequence[Any], also: Sequence[Any], *, group: Group) -> list[Any]:
    """Return the sums of gradients, sent as the setting GRADIENTS says, and of other tensors."""
    scheme = gradient_scheme()
    products = scheme.products(gradients, "sum", group)
    given = [None if i in products else scheme.compress(each) for i, each in enumerate(gradients)]
    sums = sum_tensors([*given, *also], group=group)
    found = [
        products[i] if i in products else scheme.decompress(each, gradients[i])
        for i, each in enumerate(sums[: len(given)])
    ]
    return [*found, *sums[len(given) :]]


def sum_tensors(tensors: Sequence[Any], *, group: Group | None = None) -> list[Any]:
    """Return the sums over the ranks; None stays None. Large ones do not wait for the others."""
    results = list(tensors)
    given = {i: each for i, each in enumerate(results) if each is not None}
    small = [i for i, each in given.items() if is_small(each)]
    for kind in dict.fromkeys(given[i].dtype for i in small):
        places = [i for i in small if given[i].dtype == kind]
        sums = grouped_all_reduce([given[i] for i in places], group=group)
        for place, each in zip(places, sums, strict=True):
            results[place] = each
    for place in (i for i in given if i not in small):
        found = all_reduce(given[place], group=group)
        if isinstance(found, tf.IndexedSlices):
            found = _as_of_one(found, (group or world()).size)
        results[place] = found
    return results


def _as_of_one(slices: tf.IndexedSlices, ranks: int) -> tf.IndexedSlices:
    """Add what all ranks have for the same rows, if each rank has each of these rows once.

    Rows that do not follow from the examples, such as those of an embedding of positions, are
    looked up once in one process, and Keras squares slices without adding those of a row first.
    """
    count = tf.size(slices.indices) // ranks
    table = tf.reshape(slices.indices[: count * ranks], [ranks, count])
    distinct = tf.size(tf.unique(slices.indices).y)
    alike = tf.reduce_all(tf.equal(table, table[:1])) & tf.equal(distinct, count)

    def added() -> tuple[Any, Any]:
        each = tf.concat([[ranks, count], tf.shape(slices.values)[1:]], 0)
        return tf.reduce_sum(tf.reshape(slices.values, each), 0), slices.indices[:count]

    values, indices = tf.cond(
        alike & tf.equal(tf.size(slices.indices), count * ranks),
        added,
        lambda: (slices.values, slices.indices),
    )
    values.set_shape([None, *slices.values.shape[1:]])
    return tf.IndexedSlices(values, indices, slices.dense_shape)
