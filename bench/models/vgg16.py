"""VGG with 16 layers of weights (configuration D), for 10 classes."""

from typing import Any

from .layers import convolution, cross_entropy, dense, linear, max_pool
from .model import Model, Variables

CLASSES = 10
BLOCKS = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))  # convolutions and their filters


def loss(features: Any, labels: Any, get: Variables) -> Any:
    """Return the scalar loss; the shapes are those of Model."""
    x = features
    for block, (convolutions, filters) in enumerate(BLOCKS, 1):
        for index in range(1, convolutions + 1):
            x = convolution(x, get, f"conv{block}_{index}", 3, filters)
        x = max_pool(x, 2)
    x = dense(x, get, "fc6", 4096)
    x = dense(x, get, "fc7", 4096)
    return cross_entropy(linear(x, get, "fc8", CLASSES), labels)


MODEL = Model("vgg16", (224, 224, 3), CLASSES, None, loss, variables=32, mib=512.32, deviation=0.01)
