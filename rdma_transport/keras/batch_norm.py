"""Batch normalization by the mean and variance of the whole batch."""

import functools
from collections.abc import Callable
from typing import Any

from rdma_transport.keras.calls import active
from rdma_transport.keras.current import distribution
from rdma_transport.tensorflow.moments import moments_of_all_ranks
from rdma_transport.tensorflow.parallel import counts


def synchronized(moments: Callable[..., Any], arguments: Callable[..., Any]) -> Callable[..., Any]:
    """Change a layer's method: in a call on several ranks, the moments are those of all, if so set.

    `arguments` returns the inputs, the axes, whether to keep them, and a mask or None.
    """

    @functools.wraps(moments)
    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        this, chosen = active(), distribution()
        if this is None or this.trial or chosen is None or not chosen.sync_batch_norm:
            return moments(self, *args, **kwargs)
        return moments_of_all_ranks(*arguments(self, *args, **kwargs), counts=counts())

    return changed
