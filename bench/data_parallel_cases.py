"""What `bench.data_parallel` trains: the six models, cases of many or large gradients, `fit`.

Importing this does not import TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
    name = f"dense-{width}-{layers}"
    return Model(name, (width,), width, None, loss, 2 * layers, round(mib, 2))


def _squares(features: Any, labels: Any, get: Variables) -> Any:
    """The squares of many variables: hardly any arithmetic beside the reductions."""
    import tensorflow as tf

    each = [tf.nn.l2_loss(get(f"variable{index}", [FLOATS])) for index in range(VARIABLES)]
    return tf.add_n(each)


CASES: dict[str, Model] = MODELS | {
    "dense-4096": _dense(4096, 4),
    "dense-64": _dense(64, 100),
    "dense-1024-2": _dense(1024, 2),
    "dense-4096-2": _dense(4096, 2),
    "variables": Model("variables", (FLOATS,), 2, None, _squares, VARIABLES, 1.17),
}
BATCHES = {"fcn5": 32, "variables": 1, FIT: 32}  # per rank
DENSE_BATCH, BATCH = 32, 2  # of Dense layers, and of the others


@dataclass(frozen=True)
class Case:
    """What is trained."""

    name: str
    """Of a row: the model, and the batch if there are others."""
    model: str
    batch: int
    """The examples of a rank and step."""


def cases_of(models: Sequence[str], batches: Sequence[int] = ()) -> list[Case]:
    """Return each model with each batch; without batches, with its own."""
    return [
        Case(f"{model}, batch {batch}" if len(batches) > 1 else model, model, batch)
        for model in models
        for batch in batches or [_batch_of(model)]
    ]


def _batch_of(model: str) -> int:
    return BATCHES.get(model, DENSE_BATCH if model.startswith("dense") else BATCH)


def bytes_of(model: str) -> int:
    """Return the bytes of the variables."""
    if model != FIT:
        return round(CASES[model].mib * 2**20)
    widths = [FIT_INPUTS, *[FIT_WIDTH] * FIT_LAYERS, FIT_CLASSES]
    return 4 * sum((a + 1) * b for a, b in pairwise(widths))
