"""A fully connected network for images of 28 x 28: four hidden layers of 4096, 10 classes."""

from typing import Any

from .layers import cross_entropy, dense, linear
from .model import Model, Variables

CLASSES = 10
HIDDEN = 4096


def loss(features: Any, labels: Any, get: Variables) -> Any:
    """Return the scalar loss; the shapes are those of Model."""
    x = features
    for layer in range(1, 5):
        x = dense(x, get, f"dense{layer}", HIDDEN)
    return cross_entropy(linear(x, get, "dense5", CLASSES), labels)


MODEL = Model("fcn5", (784,), CLASSES, None, loss, variables=10, mib=204.47, deviation=0.1)
