"""A call of a model on this rank's slice: what its layers do in it that concerns other ranks.

Hooks on Keras ask ``active()``. A call runs once, and again where derivatives need it; then it does
the same: it draws the same numbers, and assigns nothing.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.changes import note
from rdma_transport.collectives.membership import is_elastic, process_number
from rdma_transport.tensorflow.notes import describe_gradients
from rdma_transport.tensorflow.sameness import same_on_all_ranks

_local = threading.local()
_FOLD = 0x2545F491  # odd: the seeds of ranks differ


def active() -> "Call | None":
    """Return the call that runs in this thread."""
    return getattr(_local, "call", None)


class Call:
    """A call of a model.

    Args:
        label: For messages.
        statistics: Tells the moving statistics of batch normalization, which are averaged.
        trial: Whether it only looks: then it draws as one process does, and assigns nothing.
    """

    def __init__(
        self, label: str, statistics: Callable[[Any], bool] = lambda _: False, trial: bool = False
    ) -> None:
        self.label, self.trial = label, trial
        self.draws: list[Any] = []
        self._statistics = statistics
        self.values: list[Any] = []  # which a trial did not assign
        self._assigned: dict[int, Any] = {}
        self._runs = self._drawn = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let hooks find this call in a block."""
        before, self._drawn, self.values = active(), 0, []
        _local.call = self
        try:
            yield
        finally:
            _local.call = before
            self._runs += 1
        if self._runs == 1 and not self.trial:
            self._settle()

    def draw(self, make: Callable[[], Any]) -> Any:
        """Return a seed: another one on each rank, of which the state is the same on all."""
        if self._runs:
            self._drawn += 1
            return self.draws[self._drawn - 1]
        seed = self._made(make)
        if not self.trial:
            fold = (_number() * _FOLD) % 2**31
            seed = seed + tf.cast(tf.stack([fold] + [0] * (seed.shape[0] - 1)), seed.dtype)
        self.draws.append(seed)
        return seed

    def draw_number(self, make: Callable[[], Any]) -> Any:
        """Return a seed that is a number, for an operation with a state of its own."""
        if self._runs and not self.trial:
            raise NotImplementedError(
                f"a second derivative through {self.label} needs the random numbers of the call "
                "again, and layers of tf-keras cannot draw them: use Keras 3"
            )
        seed = make()
        self.draws.append(seed)
        return seed if seed is None or self.trial else (seed + _number() * _FOLD) % 2**31

    def _made(self, make: Callable[[], Any]) -> Any:
        """Return a seed. That its state is assigned is no concern of other ranks."""
        assigned, values = dict(self._assigned), list(self.values)
        seed = make()
        self._assigned, self.values = assigned, values
        return seed

    def assigns(self, variable: Any, value: Any) -> bool:
        """Return whether a variable may be assigned, or changed by, a value now."""
        if self._runs or self.trial:
            if not self._statistics(variable):
                self.values.append(tf.convert_to_tensor(value, variable.dtype))
            return False
        self._assigned[id(variable)] = variable
        return True

    def refuse_loss(self) -> None:
        """Raise for a loss that a layer adds."""
        raise NotImplementedError(
            f"{self.label} cannot run on several ranks: a layer adds a loss within the call "
            "(add_loss(), activity_regularizer), which would be that of a slice of the batch. "
            "Return what it is computed from, and add it to the loss in train_step() or the loop"
        )

    def _settle(self) -> None:
        """Average statistics; see that all other variables got the same value on all ranks."""
        averaged = [each for each in self._assigned.values() if self._statistics(each)]
        if averaged:
            note(f"{self.label}: ranks average the moving statistics of batch normalization")
        if self.draws:
            note(f"{self.label}: each rank draws other random numbers, for its slice")
        for kind in dict.fromkeys(each.dtype for each in averaged):
            chosen = [each for each in averaged if each.dtype == kind]
            own = [tf.convert_to_tensor(each) for each in chosen]
            describe_gradients(own, chosen)
            values = rt.grouped_all_reduce(own, "average")
            for variable, value in zip(chosen, values, strict=True):
                variable.assign(value)
        others = [each for each in self._assigned.values() if not self._statistics(each)]
        names = ", ".join(each.name for each in others)
        same_on_all_ranks(
            [tf.convert_to_tensor(each) for each in others],
            rt.world(),
            f"{self.label} cannot run on several ranks: it assigns variables in the call "
            f"({names}), and each rank computed another value, from its slice of the batch. Ranks "
            "that have that of rank 0:",
        )


def _number() -> int:
    """Return a number that the other ranks do not have, nor get."""
    return process_number() if is_elastic() else rt.world().rank


def variable_of(variable: Any) -> Any:
    """Return the variable of TensorFlow that one of Keras 3 holds."""
    held = getattr(variable, "value", None)
    return held if isinstance(held, tf.Variable) else variable
