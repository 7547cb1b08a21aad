"""AlexNet, version 2 ("One weird trick"), with the layers that TF-slim gives it, for 10 classes.

Where slim has a convolution over the whole image, this has a matrix of as many numbers.
"""

from typing import Any

from .layers import convolution, cross_entropy, dense, linear, max_pool
from .model import Model, Variables

CLASSES = 10


def loss(features: Any, labels: Any, get: Variables) -> Any:
    """Return the scalar loss; the shapes are those of Model."""
    x = convolution(features, get, "conv1", 11, 64, stride=4, pad="VALID")
    x = max_pool(x, 3)
    x = convolution(x, get, "conv2", 5, 192)
    x = max_pool(x, 3)
    x = convolution(x, get, "conv3", 3, 384)
    x = convolution(x, get, "conv4", 3, 384)
    x = convolution(x, get, "conv5", 3, 256)
    x = max_pool(x, 3)
    x = dense(x, get, "fc6", 4096)
    x = dense(x, get, "fc7", 4096)
    return cross_entropy(linear(x, get, "fc8", CLASSES), labels)


MODEL = Model(
    "alexnet", (224, 224, 3), CLASSES, None, loss, variables=16, mib=176.42, deviation=0.01
)
