"""Callbacks of ``fit()``, for Keras 3 and tf-keras, whichever ``tf.keras`` is."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rdma_transport.horovod import basics
from rdma_transport.horovod.functions import allgather_object, broadcast_variables, value_of
from rdma_transport.horovod.operations import variable_of
from rdma_transport.horovod.process_sets import ProcessSet, global_process_set
from rdma_transport.horovod.reduction import Locals
from rdma_transport.keras.kinds import keras3

keras: Any = tf.keras


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Overwrites the weights of the model and its optimizer by those of rank `root_rank`, once.

    When training begins, if all variables exist then, as in Keras 3; else after the first batch.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local = Locals()
        for variable in local_variables or ():
            self._local.add(variable)

    def register_local_var(self, var: Any) -> None:
        """Leave a variable as it is."""
        self._local.add(var)

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast with Keras 3, unless a rank does not know its input yet."""
        if keras3() is None or self.broadcast_done:
            return
        if all(allgather_object(_is_built(self.model))):
            optimizer = getattr(self.model, "optimizer", None)
            if optimizer is not None and not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast otherwise."""
        self._broadcast()

    def _broadcast(self) -> None:
        if self.broadcast_done:
            return
        variables = list(self.model.weights)
        if optimizer := getattr(self.model, "optimizer", None):
            found = optimizer.variables
            variables += list(found() if callable(found) else found)
        chosen = [each for each in variables if each not in self._local]
        value_of(broadcast_variables(_once(chosen), self.root_rank))
        self.broadcast_done = True


def _is_built(model: Any) -> bool:
    return isinstance(model, keras3().Model) and bool(model.built)


def _once(variables: list[Any]) -> list[Any]:
    found = {id(variable_of(each)): each for each in variables}
    return list(found.values())


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages metrics over the ranks that have them, at the end of each epoch.

    Give it before callbacks that use the metrics.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Change `logs`."""
        if logs is None or not self._process_set.included():
            return
        mine = {name: float(value) for name, value in logs.items() if _is_number(value)}
        every = allgather_object(mine, process_set=self._process_set)
        for name in mine:
            found = [each[name] for each in every if name in each]
            logs[name] = sum(found) / len(found)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to ``initial_lr * multiplier(epoch)`` from one epoch to another.

    `multiplier` is a number or a function. `staircase`: once for each epoch, not for each batch
    with a fraction of it, for which `steps_per_epoch` must be known. A momentum that is a variable,
    as that of tf-keras' legacy optimizers, is corrected for a batch by the change of the rate.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr, the learning rate that is multiplied, is required")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase if callable(multiplier) else True
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.multiplier: Callable[[float], float] = (
            multiplier if callable(multiplier) else _constant(multiplier)
        )
        self._restore: float | None = None  # the momentum

    def _is_active(self) -> bool:
        after = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        return self.current_epoch >= self.start_epoch and not after

    def on_train_begin(self, logs: Any = None) -> None:
        """Find how many batches an epoch has."""
        if not self.staircase and not self.steps_per_epoch:
            steps = (self.params or {}).get("steps")
            if not steps:
                raise ValueError("give steps_per_epoch: Keras does not know it")
            self.steps_per_epoch = int(steps)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate."""
        if not self._is_active():
            return
        if self.staircase:
            if batch == 0:
                self._adjust(self.current_epoch)
        else:
            self._adjust(self.current_epoch + batch / float(self.steps_per_epoch or 1))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Restore the momentum."""
        if self._restore is not None:
            _set(self.model.optimizer, "momentum", self._restore)
            self._restore = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate."""
        if logs is not None:
            logs["lr"] = _get(self.model.optimizer, "learning_rate")

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old = _get(optimizer, "learning_rate")
        new = float(self.initial_lr * self.multiplier(epoch))
        _set(optimizer, "learning_rate", new)
        momentum = getattr(optimizer, "momentum", None)
        if self.momentum_correction and isinstance(momentum, tf.Variable) and old and new != old:
            self._restore = _get(optimizer, "momentum")
            _set(optimizer, "momentum", self._restore * new / old)


def _constant(value: float) -> Callable[[float], float]:
    return lambda epoch: value


def _get(optimizer: Any, name: str) -> float:
    return float(value_of(variable_of(getattr(optimizer, name))))


def _set(optimizer: Any, name: str, value: float) -> None:
    found = variable_of(getattr(optimizer, name))
    if not isinstance(found, tf.Variable):
        setattr(optimizer, name, value)
    else:
        value_of(found.assign(value))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size()`` to `initial_lr` in some epochs."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The rate at the end of a batch, so that the last one has all of it.
            done = epoch + 1.0 / float(self.steps_per_epoch or 1)
            size = basics.size()
            return (done * (size - 1) / warmup_epochs + 1.0) / size

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the rate, and say that it has its final value."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            rate = _get(self.model.optimizer, "learning_rate")
            print(f"\nEpoch {epoch + 1}: the learning rate has risen to {rate:g}.")
