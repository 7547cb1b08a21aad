"""Elastic training: ranks that are lost cost a step, not the job.

``rdma-transport run --elastic --horovod`` starts such jobs. The program keeps what it needs to go
on in a state, commits it now and then, and trains in a function that can be called again::

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)

    @hvd.elastic.run
    def train(state):
        while state.batch < BATCHES:
            ...
            state.batch += 1
            state.commit()

    train(state)
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.collectives.membership import is_elastic, membership, others_wait
from rdma_transport.errors import HorovodInternalError, HostsUpdatedInterrupt
from rdma_transport.horovod import basics
from rdma_transport.horovod.functions import (
    allgather_object,
    broadcast_object,
    broadcast_variables,
    session_in_use,
)
from rdma_transport.horovod.keras_optimizer import create_variables
from rdma_transport.horovod.operations import variable_of
from rdma_transport.horovod.reduction import forget_passes
from rdma_transport.tensorflow.losses import is_loss

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "is_loss",
    "run",
]
T = TypeVar("T")


def run(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function that calls `function` with a state, again each time that ranks change.

    Before each call, all ranks get the state of rank 0, which has served longest. After a loss,
    that is what was committed last; when other processes are taken in, what it is then. Without
    ``rdma-transport run --elastic``, a loss ends the training as usual.
    """

    @functools.wraps(function)
    def training(state: State, *args: Any, **kwargs: Any) -> T:
        changed = False
        while True:
            try:
                if changed:
                    basics.shutdown()
                    basics.init()
                    forget_passes()  # others may have added up fewer
                    state.on_reset()
                state.sync()
                if is_elastic():
                    membership().note_state()
                return function(state, *args, **kwargs)
            except HostsUpdatedInterrupt:
                pass
            except Exception as error:
                if not is_elastic() or not is_loss(error):
                    raise
                state.restore()
            changed = True

    return training


class State:
    """What a training needs to go on. Subclasses say how to save, restore and share it.

    `bcast_object` and `get_rank` are not needed.
    """

    def __init__(self, bcast_object: Any = None, get_rank: Any = None) -> None:
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Call functions each time that ranks have changed, before they share the state."""
        self._reset_callbacks += callbacks

    def on_reset(self) -> None:
        """Do ``reset()``, and call the functions."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the state, and do ``check_host_updates()``. All ranks call this."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise ``HostsUpdatedInterrupt`` if others wait to be taken in. All ranks call this."""
        if is_elastic():
            waits = np.array([others_wait()], np.uint8)
            if rt.communicator().broadcast(waits, 0)[0]:  # all ranks do the same
                raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Keep a copy of the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the last copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take the state of rank 0, and save it. All ranks call this."""
        raise NotImplementedError

    def reset(self) -> None:
        """Do what else is needed after ranks have changed."""


class ObjectState(State):
    """Objects of Python, which are attributes of the state: ``ObjectState(batch=0).batch``.

    `bcast_object` and `get_rank` are not needed.
    """

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        super().__init__()
        self._names = list(kwargs)
        for name, value in kwargs.items():
            if hasattr(type(self), name) or name.startswith("_"):
                raise ValueError(f"a state has an attribute {name!r} of its own: use another name")
            setattr(self, name, value)
        self._saved: dict[str, Any] = {}
        self._save_objects()

    def save(self) -> None:
        """Keep a copy of the objects."""
        self._save_objects()

    def restore(self) -> None:
        """Return to the last copy."""
        for name, value in copy.deepcopy(self._saved).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Take the objects of rank 0."""
        values = {name: getattr(self, name) for name in self._names}
        for name, value in broadcast_object(values, 0).items():
            setattr(self, name, value)
        self._save_objects()

    def _save_objects(self) -> None:
        self._saved = copy.deepcopy({name: getattr(self, name) for name in self._names})


class TensorFlowState(ObjectState):
    """Variables, and objects as of ``ObjectState``.

    In a version 1 graph, `variables` are by default all global ones, and `session` is by default
    the current one; the state must be made before the graph is finalized.
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None:
            if tf.executing_eagerly():
                raise ValueError("give the variables: TensorFlow 2 has no list of all")
            variables = tf.compat.v1.global_variables()
        self._values: _Values = (
            _Values(variables if callable(variables) else lambda: list(variables))
            if tf.executing_eagerly()
            else _SessionValues(list(variables), session)
        )
        super().__init__(**kwargs)
        self._values.save()

    def save(self) -> None:
        """Keep a copy of variables and objects."""
        self._values.save()
        super().save()

    def restore(self) -> None:
        """Return to the last copy."""
        self._values.restore()
        super().restore()

    def sync(self) -> None:
        """Take variables and objects of rank 0."""
        self._values.sync()
        super().sync()
        self._values.save()


class TensorFlowKerasState(TensorFlowState):
    """A model of Keras, its optimizer, and objects as of ``ObjectState``.

    `optimizer` is by default the one with which the model is compiled. The model must be built.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any):
        self.model, self._given = model, optimizer
        if not model.built:
            raise ValueError("the model has no variables yet: build it, or call it, before")
        super().__init__(self._variables if tf.executing_eagerly() else self._variables(), **kwargs)

    @property
    def optimizer(self) -> Any:
        """The one that was given, or the one with which the model is compiled now."""
        return self._given or getattr(self.model, "optimizer", None)

    def _variables(self) -> list[Any]:
        _build(self.optimizer, self.model)
        return [*self.model.weights, *_variables_of(self.optimizer)]


def _variables_of(optimizer: Any) -> list[Any]:
    if optimizer is None:
        return []
    found = optimizer.variables
    return list(found() if callable(found) else found)


def _build(optimizer: Any, model: Any) -> None:
    """Create the variables of an optimizer, which a rank needs to take those of rank 0."""
    if optimizer is None:
        return
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if hasattr(inner, "_create_all_weights"):
        create_variables(inner, model.trainable_variables)
    elif not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        create_variables(optimizer, model.trainable_variables)


class _Values:
    """The values of variables, eagerly."""

    def __init__(self, variables: Callable[[], list[Any]]) -> None:
        self._variables = variables
        self._saved: list[Any] = []

    def save(self) -> None:
        self._saved = [(each, each.numpy()) for each in map(variable_of, self._variables())]

    def restore(self) -> None:
        for each, value in self._saved:
            each.assign(value)

    def sync(self) -> None:
        variables = self._variables()
        _check_alike(variables)
        broadcast_variables(variables, 0)


class _SessionValues(_Values):
    """The values of variables of a version 1 graph."""

    def __init__(self, variables: list[Any], session: Any) -> None:
        super().__init__(lambda: variables)
        self._session = session
        self._given = [tf.compat.v1.placeholder(v.dtype.base_dtype, v.shape) for v in variables]
        assigned = map(tf.compat.v1.assign, variables, self._given)
        self._assign = tf.group(*assigned)
        self._broadcast = broadcast_variables(variables, 0)

    def save(self) -> None:
        self._saved = self._open().run(self._variables())

    def restore(self) -> None:
        self._open().run(self._assign, dict(zip(self._given, self._saved, strict=True)))

    def sync(self) -> None:
        _check_alike(self._variables())
        self._open().run(self._broadcast)

    def _open(self) -> Any:
        return self._session or session_in_use()


def _check_alike(variables: list[Any]) -> None:
    """Raise ``ValueError`` on all ranks if they have different variables."""
    every = allgather_object([(tuple(each.shape), str(each.dtype)) for each in variables])
    for rank, theirs in enumerate(every):
        if theirs != every[0]:
            raise ValueError(
                f"the state of rank {rank} has other variables than that of rank 0, "
                f"{len(theirs)} and {len(every[0])}: build the model and its optimizer alike on "
                "all ranks before the state is made"
            )
