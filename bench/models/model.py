"""What a model is: the shape of an example, a loss, and how large its variables are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

# Makes an initial value from a shape and a stateless seed, on the device of the scope it is in.
Initializer = Callable[[Sequence[int], Sequence[int]], Any]


def normal(gain: float) -> Initializer:
    """Normal values of variance `gain` over the number of inputs; the last dimension is outputs."""

    def initializer(shape: Sequence[int], seed: Sequence[int]) -> Any:
        import tensorflow as tf

        deviation = (gain / prod(shape[:-1])) ** 0.5
        return tf.random.stateless_normal(shape, seed=seed, stddev=deviation)

    return initializer


def zeros(shape: Sequence[int], seed: Sequence[int]) -> Any:
    """Zeros, whatever the seed."""
    import tensorflow as tf

    return tf.zeros(shape)


BEFORE_RELU = normal(2.0)
BEFORE_OTHER = normal(1.0)


class Variables(Protocol):
    """Gives a variable, named once per model, as it was read on the worker that computes."""

    def __call__(
        self, name: str, shape: Sequence[int], initializer: Initializer = BEFORE_RELU
    ) -> Any: ...


@dataclass(frozen=True)
class Model:
    """A model with one label per example.

    Features are float32 of shape [batch, *input_shape], or [batch, sequence, *input_shape]. The
    loss takes its shapes from them, so that `dataclasses.replace()` may change `sequence`.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    sequence: int | None
    loss: Callable[[Any, Any, Variables], Any]  # of features, labels and variables
    variables: int
    mib: float  # rounded to 0.01
    deviation: float = 1.0  # of the features; small where the loss would not stay finite

    def features_shape(self, batch: int) -> list[int]:
        """Return the shape of a batch of so many examples."""
        steps = [] if self.sequence is None else [self.sequence]
        return [batch, *steps, *self.input_shape]
