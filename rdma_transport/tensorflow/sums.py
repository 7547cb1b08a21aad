"""Sums of gradients over the ranks."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rdma_transport.tensorflow.groups import Group
from rdma_transport.tensorflow.operations import all_reduce, grouped_all_reduce

# Of smaller gradients, the time goes into starting operations: they are reduced together.
_SMALL = 64 * 1024  # bytes


def is_small(gradient: Any) -> bool:
    """Return whether to reduce a gradient together with others."""
    if isinstance(gradient, tf.IndexedSlices):
        return False
    count = gradient.shape.num_elements()
    return count is not None and count * gradient.dtype.size < _SMALL


def sum_gradients(gradients: Sequence[Any], *, group: Group | None = None) -> list[Any]:
    """Return the sums over the ranks; None stays None. Large ones do not wait for the others."""
    results = list(gradients)
    given = {i: each for i, each in enumerate(results) if each is not None}
    small = [i for i, each in given.items() if is_small(each)]
    for kind in dict.fromkeys(given[i].dtype for i in small):
        places = [i for i in small if given[i].dtype == kind]
        sums = grouped_all_reduce([given[i] for i in places], group=group)
        for place, each in zip(places, sums, strict=True):
            results[place] = each
    for place in (i for i in given if i not in small):
        results[place] = all_reduce(given[place], group=group)
    return results
