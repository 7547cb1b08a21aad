"""One GRU layer, 1024 inputs and 1024 hidden, and a softmax over 1000 of its last output."""

from typing import Any

from .layers import cross_entropy, linear
from .model import Model, Variables
from .recurrent import CLASSES, HIDDEN, SEQUENCE, of_inputs, of_state


def loss(features: Any, labels: Any, get: Variables) -> Any:
    """Return the scalar loss; the shapes are those of Model."""
    import tensorflow as tf

    gates = ("update", "reset", "candidate")
    inputs = zip(*(of_inputs(features, get, gate) for gate in gates), strict=True)
    for_update, for_reset, for_candidate = (of_state(get, gate) for gate in gates)
    hidden = tf.zeros([features.shape[0], HIDDEN])
    for update_x, reset_x, candidate_x in inputs:
        update = tf.sigmoid(update_x + tf.matmul(hidden, for_update))
        reset = tf.sigmoid(reset_x + tf.matmul(hidden, for_reset))
        candidate = tf.tanh(candidate_x + tf.matmul(reset * hidden, for_candidate))
        hidden = (1.0 - update) * hidden + update * candidate
    return cross_entropy(linear(hidden, get, "softmax", CLASSES), labels)


MODEL = Model("gru", (1024,), CLASSES, SEQUENCE, loss, variables=11, mib=27.92)
