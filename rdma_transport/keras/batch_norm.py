"""Batch normalization by the mean and variance of the whole batch, or of a slice of it."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from rdma_transport.keras.calls import active
from rdma_transport.keras.current import distribution
from rdma_transport.tensorflow.moments import moments_of_all_ranks
from rdma_transport.tensorflow.parallel import current_cut

_ONE = (
    "{} normalizes a slice of one example by its own mean, and so to zeros: ranks have too few "
    "examples of this batch. Use run --sync-batch-norm or DataParallel(sync_batch_norm=True), "
    "larger batches, or drop_remainder=True if it is the last one of the input"
)


def synchronized(moments: Callable[..., Any], arguments: Callable[..., Any]) -> Callable[..., Any]:
    """Change a layer's method: in a call on several ranks, the moments are those of all, if so set.

    If not, a slice needs more than one value. `arguments` returns the inputs, the axes, whether to
    keep them, and a mask or None.
    """

    @functools.wraps(moments)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        this, chosen, cut = active(), distribution(), current_cut()
        if this is None or this.trial or chosen is None or cut is None:
            return moments(self, *args, **kwargs)
        given = arguments(self, *args, **kwargs)
        if chosen.sync_batch_norm:
            counts = cut.kept is cut.taken or cut.kept > 0
            return moments_of_all_ranks(*given, counts=counts)
        with tf.control_dependencies(_enough(given[0], given[1], cut.total, this.label)):
            return moments(self, *args, **kwargs)

    return changed


def _enough(inputs: Any, axes: Iterable[int], total: Any, label: str) -> list[Any]:
    """Return a check that a slice has several values of a channel, or is the whole batch."""
    number = tf.reduce_prod(tf.gather(tf.shape(inputs), list(axes)))
    check = tf.debugging.Assert((number > 1) | (total <= 1), [_ONE.format(label)])
    return [] if check is None else [check]
