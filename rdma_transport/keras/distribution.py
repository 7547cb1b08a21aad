"""The distribution that is set, and the calls of models that follow it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import rdma_transport.tensorflow as rt
from rdma_transport.keras import keras3


class DataParallel:
    """Calls of models run on all ranks, each on its slice of the batch.

    Args:
        sync_batch_norm: Batch normalization uses the mean and variance of the whole batch, as one
            process does, instead of those of each slice.
    """

    def __init__(self, sync_batch_norm: bool = False) -> None:
        self.sync_batch_norm = sync_batch_norm

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Set this distribution for a block."""
        before = distribution()
        set_distribution(self)
        try:
            yield
        finally:
            set_distribution(before)


_current: list[DataParallel | None] = [None]


def distribution() -> DataParallel | None:
    """Return the distribution that is set."""
    return _current[0]


def set_distribution(value: DataParallel | None) -> None:
    """Let the calls of models follow a distribution from now on; None: run whole, as before."""
    if value is not None:
        rt.connect()
        if "keras" in sys.modules:
            keras3.follow(distribution)
    _current[0] = value
