"""Elastic training with ``fit()``, for Keras 3 and tf-keras, whichever ``tf.keras`` is.

``horovod.tensorflow.keras.elastic`` and ``horovod.keras.elastic``.
"""

from typing import Any

import tensorflow as tf

from rdma_transport.horovod.elastic import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    TensorFlowKerasState,
    TensorFlowState,
    is_loss,
    run,
)

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "is_loss",
    "run",
]
keras: Any = tf.keras


class KerasState(TensorFlowKerasState):
    """A model of Keras, its optimizer, and objects: ``KerasState(model, batch=0, epoch=0)``."""


class CommitStateCallback(keras.callbacks.Callback):
    """Commits a state after each `batches_per_commit` batches, and after each epoch.

    Give it after the callbacks that update the state.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError("batches_per_commit is 1 or more")
        self.state, self.batches_per_commit = state, batches_per_commit
        self._since_commit = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to count: all ranks commit after the same batches."""
        self._since_commit = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the batch."""
        self._since_commit += 1
        if self._since_commit >= self.batches_per_commit:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self._commit()

    def _commit(self) -> None:
        self._since_commit = 0
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Adds to ``state.batch`` the batches that are done; it is 0 after an epoch.

    When ``fit()`` is called again, Keras begins an epoch anew, and with as many batches as it is
    told: ``fit(steps_per_epoch=STEPS - state.batch, epochs=1)`` goes on where the epoch was.
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state: Any = state
        self._before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Note how many batches were done before."""
        self._before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the batch, unless it is the last one: that is an epoch."""
        if batch + 1 != self.params.get("steps"):  # fit() takes steps_per_epoch=0 for none given
            self.state.batch = self._before + batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begin at 0."""
        self.state.batch = self._before = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps in ``state.epoch`` how many epochs are done.

    ``fit()`` may count them from 0 each time, for ``epochs=EPOCHS - state.epoch``, or from
    ``initial_epoch=state.epoch``.
    """

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state: Any = state
        self._before: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Forget how ``fit()`` counted the last time."""
        self._before = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note how ``fit()`` counts."""
        if self._before is None:
            self._before = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Count the epoch."""
        self.state.epoch = (self._before or 0) + epoch + 1
