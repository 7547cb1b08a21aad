"""Data-parallel training, as a distribution that is set for models."""

from collections.abc import Iterator
from contextlib import contextmanager

from rdma_transport.collectives.membership import is_elastic
from rdma_transport.keras import elastic, files, hooks, keras2, keras3, kinds
from rdma_transport.keras.current import choose, distribution


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
            choose(before)


def set_distribution(value: DataParallel | None) -> None:
    """Let the calls of models follow a distribution from now on; None: run whole, as before.

    It concerns Keras 3 and tf-keras, whichever is imported: set it again after importing the other.
    """
    if value is not None:
        if is_elastic():
            elastic.follow()
        hooks.follow_tensorflow()
        files.follow_tensorflow()
        if kinds.keras3() is not None:
            keras3.follow()
        if kinds.keras2() is not None:
            keras2.follow()
    choose(value)
