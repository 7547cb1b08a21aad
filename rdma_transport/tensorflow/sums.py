"""Sums of gradients over the ranks."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdma_transport.tensorflow.groups import Group, world
from rdma_transport.tensorflow.notes import size_of
from rdma_transport.tensorflow.operations import all_reduce, grouped_all_reduce, place_in
from rdma_transport.tensorflow.origins import Origin
from rdma_transport.tensorflow.schemes import gradient_scheme

# Of smaller gradients, the time goes into starting operations: they are reduced together.
_SMALL = 64 * 1024  # bytes
_MIXED = (
    "cannot run on several ranks: a function of a batch looks up rows of one table for examples, "
    "and others that do not follow from examples, so ranks cannot tell which lookups one process "
    "would do once. Use two tables, or multiply by tf.one_hot() for what follows from no example"
)
_UNKNOWN = (
    "cannot run on several ranks: all ranks look up the same rows of a table, in a tf.function, "
    "tf.cond() or loop within the function of a batch, and cannot tell whether one process would "
    "do so once, as for positions, or for each example. Look them up outside of these"
)


def divided(tensors: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Return the places of small tensors, to be reduced together, and those of the others.

    None has no place.
    """
    given = [place for place, each in enumerate(tensors) if each is not None]
    small = [place for place in given if _is_small(tensors[place])]
    return small, [place for place in given if place not in small]


def _is_small(tensor: Any) -> bool:
    size = None if isinstance(tensor, tf.IndexedSlices) else size_of(tensor)
    return size is not None and size < _SMALL


def sum_gradients(
    gradients: Sequence[Any], also: Sequence[Any], *, group: Group, origins: Sequence[Origin]
) -> list[Any]:
    """Return the sums of gradients, sent as the setting GRADIENTS says, and of other tensors.

    Slices become those of one process, as their `origins` say.
    """
    sent, finish = gradient_scheme().prepare(gradients, "sum", group)
    sums = sum_tensors([*sent, *also], group=group, origins=origins)
    return [*finish(sums[: len(sent)]), *sums[len(sent) :]]


def sum_tensors(
    tensors: Sequence[Any], *, group: Group | None = None, origins: Sequence[Origin] = ()
) -> list[Any]:
    """Return the sums over the ranks; None stays None. Large ones do not wait for the others.

    Slices become those of one process, as their `origins` say.
    """
    results = list(tensors)
    small, alone = divided(tensors)
    for kind in dict.fromkeys(tensors[i].dtype for i in small):
        places = [i for i in small if tensors[i].dtype == kind]
        sums = grouped_all_reduce([tensors[i] for i in places], group=group)
        for place, each in zip(places, sums, strict=True):
            results[place] = each
    for place in alone:
        found = all_reduce(tensors[place], group=group)
        if isinstance(found, tf.IndexedSlices):
            found = _as_of_one(found, place_in(group or world())[1], origins[place])
        results[place] = found
    return results


def _as_of_one(slices: tf.IndexedSlices, ranks: Any, origin: Origin) -> tf.IndexedSlices:
    """Return the slices that one process has, of those of all ranks."""
    if origin == Origin.EXAMPLES:
        return slices
    if origin == Origin.UNIQUE:
        unique = tf.unique(slices.indices)
        sums = tf.math.unsorted_segment_sum(slices.values, unique.idx, tf.size(unique.y))
        return tf.IndexedSlices(sums, unique.y, slices.dense_shape)
    if origin == Origin.MIXED:
        raise NotImplementedError(_MIXED)
    count = tf.size(slices.indices) // ranks
    table = tf.reshape(slices.indices[: count * ranks], [ranks, count])
    alike = tf.equal(tf.size(slices.indices), count * ranks) & (count > 0)
    alike &= tf.reduce_all(tf.equal(table, table[:1]))
    if origin == Origin.UNKNOWN:
        check = tf.debugging.Assert(tf.logical_not(alike), [_UNKNOWN])
        with tf.control_dependencies([] if check is None else [check]):
            values = tf.identity(slices.values)
        return tf.IndexedSlices(values, slices.indices, slices.dense_shape)

    def added() -> tuple[Any, Any]:
        each = tf.concat([[ranks, count], tf.shape(slices.values)[1:]], 0)
        return tf.reduce_sum(tf.reshape(slices.values, each), 0), slices.indices[:count]

    values, indices = tf.cond(alike, added, lambda: (slices.values, slices.indices))
    values.set_shape([None, *slices.values.shape[1:]])
    return tf.IndexedSlices(values, indices, slices.dense_shape)
