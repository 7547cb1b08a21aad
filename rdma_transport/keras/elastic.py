"""Elastic training of Keras models: what ranks do together, they do in steps.

A step is a batch of ``fit()``, of its validation, or later of ``evaluate()`` or ``predict()``.
Before each, a rank keeps the values of the variables that it uses. If a rank is lost, the others
return to them, connect again, and repeat the step. A process that takes its place runs the script
from its top. In ``fit()`` it takes batches from the input, and forgets them, until it has taken as
many as the others. Then it gets the state of one of them, and goes on with the same batch.
"""

import functools
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.collectives.membership import (
    membership,
    others_wait,
    process_number,
    until_none_is_lost,
)
from rdma_transport.tensorflow import groups
from rdma_transport.tensorflow.losses import is_loss
from rdma_transport.tensorflow.parallel import share_in_blocks_only, sharing
from rdma_transport.tensorflow.variables import Variables, variables_of

_NEAR = 8  # steps
_TELL = 0.5  # seconds, between two messages of how far the training is
_OF_FIT = ("model", "_model", "params", "validation_data")  # attributes of callbacks


class Function:
    """A function of Keras that takes a batch from an iterator, as one that ranks call together.

    `kind` is "train", "test" or "predict". `whole` is Keras' own, which each rank calls alone.
    `run` computes for a batch. `count`: how many batches are taken, one after the other; 0:
    `source` is a batch.
    """

    def __init__(
        self, kind: str, whole: Callable[..., Any], run: Callable[..., Any], count: int
    ) -> None:
        self.kind, self._whole, self._count = kind, whole, count
        self._run = tf.function(run, reduce_retracing=True)
        self._used: Variables | None = None

    def __call__(self, source: Any) -> Any:
        """Do a step with each batch; return the result of the last one."""
        if not training.is_shared:
            return self._whole(source)
        if not self._count:
            return training.step(self, source)
        result = training.step(self, next(source))
        for _, batch in zip(range(self._count - 1), source, strict=False):
            result = training.step(self, batch)
        return result

    def used(self, batch: Any) -> Variables:
        """Return the variables that the function uses; build its graph before, if needed."""
        if self._used is None:
            graph = self._run.get_concrete_function(batch)
            handles = variables_of(graph)
            self._used = Variables()
            self._used.add(handles)
            training.variables.add(handles)
        return self._used

    def run(self, batch: Any) -> Any:
        """Compute."""
        return self._run(batch)


class Call:
    """What is not of Keras, as a step."""

    kind = "other"

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def used(self, _: Any) -> Variables:
        """Return no variables."""
        return Variables()

    def run(self, _: Any) -> Any:
        """Do it."""
        return self._function()


class Training:
    """How far this process is, and what it has in common with the other ranks."""

    def __init__(self) -> None:
        self.variables = Variables()
        self.is_shared = False  # now
        self.is_skipping = False
        """Whether this process is new, and only takes batches from the input."""
        self._done = 0  # steps
        self._epoch = 0
        self._tests = True  # whether callbacks were told that tests begin
        self._first_fit_ended = False
        self._has_state = True
        self._connected = False
        self._target: int | None = None  # steps that others have done, from which to go on
        self._root = 0  # which has the state
        self._result: Any = None  # of the last step
        self._trained: Any = None  # the result of the last batch of training
        self._missed: dict[str, Any] = {}  # what callbacks are told of an epoch, if not known here
        self._callbacks: Any = None
        self._gap = 0  # to the others, when last asked
        self._told = 0.0
        self._in_callbacks = False

    @contextmanager
    def shared(self, fit: bool) -> Iterator[None]:
        """Do steps with the other ranks in a block, which is of ``fit()`` or not."""
        if self.is_shared or not (fit or self._first_fit_ended):
            yield  # in a call of fit(); or before the first one, where each rank computes alone
            return
        if not self._first_fit_ended:
            self._target = self._gap = membership().progress()
            self.is_skipping = self._target > 0
            self._has_state = not self.is_skipping
        self.is_shared = True
        try:
            with sharing(True):
                yield
        finally:
            self.is_shared = False
        if not self._first_fit_ended:
            if not self._has_state:
                membership().wait_for_end()
            membership().take_no_more()
            self._first_fit_ended = True

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let this rank compute alone in a block."""
        before, self.is_shared = self.is_shared, False
        outside, self._in_callbacks = self._in_callbacks, True
        try:
            with sharing(False):
                yield
        finally:
            self.is_shared, self._in_callbacks = before, outside

    def calls(self, name: str, callbacks: Any, *arguments: Any) -> bool:
        """Return whether a method of callbacks is called: not if the others did that before."""
        if name == "on_train_begin":
            self._callbacks = callbacks
        elif name == "on_epoch_begin":
            self._epoch = arguments[0]
        elif name == "on_epoch_end" and self._missed:
            arguments[1].update(self._missed)
            self._missed = {}
        elif name == "on_test_begin":
            self._tests = not self.is_skipping
        tests = self._tests
        if name == "on_test_end":
            self._tests = True
        if name.startswith("on_test_"):
            return tests
        return name in ("on_train_begin", "on_train_end") or not self.is_skipping

    @property
    def can_wait(self) -> bool:
        """Whether all ranks are at the same place of the script, after the first ``fit()``."""
        return self._first_fit_ended and not self._in_callbacks

    @property
    def writes(self) -> bool:
        """Whether this process writes files. Before ``fit()``, no process knows its rank."""
        return rt.world().rank == 0 if self._connected else process_number() == 0

    def step(self, function: Function | Call, batch: Any) -> Any:
        """Do a step together; repeat it if a rank is lost. Return its result."""
        used = function.used(batch)
        while True:
            saved = None
            try:
                if not self._connected and not self._may_skip():
                    self._meet()
                if self._target is not None:
                    if self._done < self._target:
                        return self._skip()
                    self._share_state()
                if self._others_come():
                    self._leave()
                    continue
                saved = used.values()
                result = function.run(batch)
            except Exception as error:
                if not is_loss(error):
                    raise
                if saved is not None:
                    used.assign(saved)
                self._leave()
                continue
            self._done += 1
            self._result = result
            if function.kind == "train":
                self._trained = result
            self._tell()
            return result

    def _may_skip(self) -> bool:
        """Return whether a new process is still far behind the others, which do not wait for it."""
        if not self.is_skipping or self._target is None:
            return False
        if self._done < self._target:
            return True
        before, self._target = self._gap, membership().progress()
        self._gap = self._target - self._done
        return _NEAR < self._gap < before / 2  # else it does not come nearer

    def _skip(self) -> Any:
        self._done += 1
        return {} if self.is_skipping else self._result

    def _meet(self) -> None:
        """Connect, and find out who is how far."""

        def connect() -> None:
            rt.connect()
            own = (self._done, self._has_state, _as_arrays((self._result, self._trained)))
            self._take(rt.communicator().all_gather_object(own))

        until_none_is_lost(connect, rt.close)
        self._connected = True

    def _take(self, news: list[tuple[int, bool, Any]]) -> None:
        known = {rank: done for rank, (done, has_state, _) in enumerate(news) if has_state}
        if not known:
            raise RuntimeError("no rank is left that has the state of the training")
        self._root = max(known, key=lambda rank: known[rank])  # the first one
        self._target = known[self._root]
        self._result, self._trained = _as_tensors(news[self._root][2])
        if self._done < self._target:
            # By one, if it has not done the last step, which the root has; else it is new.
            self.is_skipping = self.is_skipping or self._done + 1 < self._target
            self._has_state = False

    def _share_state(self) -> None:
        """Take the values and the callbacks of the root, if needed."""
        world = rt.communicator()
        own = self.variables.values()
        kinds = world.all_gather_object([(str(each.dtype), tuple(each.shape)) for each in own])
        count = min(map(len, kinds))  # a rank may be about to build another graph
        for rank, theirs in enumerate(kinds):
            if theirs[:count] != kinds[0][:count]:
                raise ValueError(
                    f"rank {rank} has other variables than rank 0: a script must build its models "
                    "alike whenever it is run"
                )
        values = [rt.broadcast(each, self._root) for each in own[:count]]
        callbacks = world.broadcast_object(_attributes(self._callbacks), self._root)
        if not self._has_state or self._target == 0:
            self.variables.assign(values)
        if self.is_skipping:
            _set_attributes(self._callbacks, callbacks, self._epoch)
            if not self._tests:  # in a validation, whose epoch this process has not trained
                self._missed = dict(_as_arrays(self._trained))
        self._target, self.is_skipping, self._has_state = None, False, True
        membership().note_state()

    def _others_come(self) -> bool:
        """Return whether others are to be taken in; all ranks the same."""
        if self._first_fit_ended:
            return False
        waits = np.array([others_wait()], np.uint8)
        return bool(rt.communicator().broadcast(waits, 0)[0])

    def _leave(self) -> None:
        rt.close()
        self._connected = False

    def _tell(self) -> None:
        """Let the launcher know how far the training is, for processes that are to come."""
        now = time.monotonic()
        if not self._first_fit_ended and rt.world().rank == 0 and now > self._told + _TELL:
            self._told = now
            membership().note_progress(self._done)


training = Training()


@functools.cache
def follow() -> None:
    """Let ranks of this elastic job share the calls of models in steps only."""
    groups.expect()
    share_in_blocks_only()


def _as_arrays(result: Any) -> Any:
    return tf.nest.map_structure(lambda each: each.numpy() if tf.is_tensor(each) else each, result)


def _as_tensors(result: Any) -> Any:
    return tf.nest.map_structure(
        lambda each: tf.constant(each) if isinstance(each, (np.ndarray, np.generic)) else each,
        result,
    )


def _attributes(callbacks: Any) -> list[dict[str, bytes]]:
    """Return what callbacks remember, without what cannot be moved to another process."""
    found: list[dict[str, bytes]] = []
    for callback in getattr(callbacks, "callbacks", []):
        found.append({})
        for name, value in vars(callback).items():
            if name not in _OF_FIT:
                try:
                    found[-1][name] = pickle.dumps(value)
                except Exception:  # files, functions and threads
                    continue
    return found


def _set_attributes(callbacks: Any, found: list[dict[str, bytes]], epoch: int) -> None:
    if hasattr(callbacks, "_batch_start_time"):  # of tf-keras, which measures callbacks
        callbacks._batch_start_time = time.time()
    for callback, attributes in zip(getattr(callbacks, "callbacks", []), found, strict=False):
        if type(callback).__name__ == "ProgbarLogger":
            callback.on_epoch_begin(epoch)
            continue
        for name, value in attributes.items():
            setattr(callback, name, pickle.loads(value))
