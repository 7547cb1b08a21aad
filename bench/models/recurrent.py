"""What LSTM and GRU share. Each gate has matrices of its own for the input and for the state."""

from typing import Any

from .layers import linear
from .model import BEFORE_OTHER, Variables

HIDDEN = 1024
CLASSES = 1000
SEQUENCE = 20  # unrolled; the size of the variables does not depend on it


def of_inputs(features: Any, get: Variables, gate: str) -> Any:
    """The part W x + b of a gate, a list with one [batch, HIDDEN] per step."""
    import tensorflow as tf

    steps = features.shape[1]
    in_order = tf.reshape(tf.transpose(features, [1, 0, 2]), [-1, features.shape[2]])
    return tf.split(linear(in_order, get, f"{gate}/input", HIDDEN), steps)


def of_state(get: Variables, gate: str) -> Any:
    """The matrix U of a gate."""
    return get(f"{gate}/state/weights", [HIDDEN, HIDDEN], BEFORE_OTHER)
