"""What `bench.data_parallel` trains: the six models, three cases of many or large gradients, `fit`.

Importing this does not import TensorFlow.
"""

from itertools import pairwise
from typing import Any

from .models import MODELS, Model
from .models.layers import cross_entropy, dense, linear
from .models.model import Variables

FIT = "keras-fit"  # a model that Keras trains by `fit`
FIT_WIDTH, FIT_LAYERS, FIT_CLASSES = 2048, 3, 10
FIT_INPUTS = 784
VARIABLES, FLOATS = 300, 1024


def _dense(width: int, layers: int) -> Model:
    def loss(features: Any, labels: Any, get: Variables) -> Any:
        x = features
        for layer in range(layers - 1):
            x = dense(x, get, f"dense{layer}", width)
        return cross_entropy(linear(x, get, f"dense{layers - 1}", width), labels)

    mib = layers * (width + 1) * width * 4 / 2**20
    return Model(f"dense-{width}", (width,), width, None, loss, 2 * layers, round(mib, 2))


def _squares(features: Any, labels: Any, get: Variables) -> Any:
    """The squares of many variables: hardly any arithmetic beside the reductions."""
    import tensorflow as tf

    each = [tf.nn.l2_loss(get(f"variable{index}", [FLOATS])) for index in range(VARIABLES)]
    return tf.add_n(each)


CASES: dict[str, Model] = MODELS | {
    "dense-4096": _dense(4096, 4),
    "dense-64": _dense(64, 100),
    "variables": Model("variables", (FLOATS,), 2, None, _squares, VARIABLES, 1.17),
}
BATCHES = {"dense-4096": 32, "dense-64": 32, "variables": 1, "fcn5": 32, FIT: 32}
BATCH = 2  # of the others


def batch_of(case: str, given: int | None = None) -> int:
    """Return the examples per rank and step: those given, or the case's own."""
    return given or BATCHES.get(case, BATCH)


def bytes_of(case: str) -> int:
    """Return the bytes of the variables."""
    if case != FIT:
        return round(CASES[case].mib * 2**20)
    widths = [FIT_INPUTS, *[FIT_WIDTH] * FIT_LAYERS, FIT_CLASSES]
    return 4 * sum((a + 1) * b for a, b in pairwise(widths))
