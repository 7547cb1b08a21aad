"""One LSTM layer, 1024 inputs and 1024 hidden, and a softmax over 1000 of its last output."""

from typing import Any

from .layers import cross_entropy, linear
from .model import Model, Variables
from .recurrent import CLASSES, HIDDEN, SEQUENCE, of_inputs, of_state


def loss(features: Any, labels: Any, get: Variables) -> Any:
    """Return the scalar loss; the shapes are those of Model."""
    import tensorflow as tf

    gates = ("input", "forget", "output", "candidate")
    inputs = zip(*(of_inputs(features, get, gate) for gate in gates), strict=True)
    matrices = [of_state(get, gate) for gate in gates]
    hidden = cell = tf.zeros([features.shape[0], HIDDEN])
    for step in inputs:
        sums = [x + tf.matmul(hidden, matrix) for x, matrix in zip(step, matrices, strict=True)]
        admit, keep, show = (tf.sigmoid(value) for value in sums[:3])
        cell = keep * cell + admit * tf.tanh(sums[3])
        hidden = show * tf.tanh(cell)
    return cross_entropy(linear(hidden, get, "softmax", CLASSES), labels)


MODEL = Model("lstm", (1024,), CLASSES, SEQUENCE, loss, variables=14, mib=35.93)
