"""Inception v3 with its auxiliary head, with the layers that TF-slim gives it, for 10 classes.

Each convolution is followed by batch normalisation with a learned offset and no learned scale. It
normalises by the batch it sees and keeps no moving averages. The auxiliary head sees one pixel per
example, so a batch of one gives it nothing to learn from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .layers import cross_entropy, linear
from .model import Model, Variables, zeros

CLASSES = 10
AUXILIARY_WEIGHT = 0.4
EPSILON = 1e-3


@dataclass(frozen=True)
class Conv:
    """A convolution of height x width, with batch normalization."""

    filters: int
    height: int = 1
    width: int = 1
    stride: int = 1
    pad: str = "SAME"


@dataclass(frozen=True)
class Pool:
    """A pooling of size x size."""

    kind: str  # AVG or MAX
    size: int = 3
    stride: int = 1
    pad: str = "SAME"


@dataclass(frozen=True)
class Fork:
    """Branches over one input; their results are joined by channel."""

    branches: tuple[tuple["Layer", ...], ...]


Layer = Conv | Pool | Fork
HALVE = Pool("MAX", stride=2, pad="VALID")


def square(filters: int, size: int, stride: int = 1) -> Conv:
    """A convolution that keeps the size of the image, or halves it."""
    return Conv(filters, size, size, stride, "SAME" if stride == 1 else "VALID")


def mixed_5(pooled: int) -> Fork:
    """For 35 x 35 pixels."""
    return Fork(
        (
            (Conv(64),),
            (Conv(48), square(64, 5)),
            (Conv(64), square(96, 3), square(96, 3)),
            (Pool("AVG"), Conv(pooled)),
        )
    )


def mixed_6(inner: int) -> Fork:
    """For 17 x 17 pixels: 7 x 7 convolutions as pairs of 1 x 7 and 7 x 1."""
    wide, high = Conv(inner, 1, 7), Conv(inner, 7, 1)
    return Fork(
        (
            (Conv(192),),
            (Conv(inner), wide, Conv(192, 7, 1)),
            (Conv(inner), high, wide, high, Conv(192, 1, 7)),
            (Pool("AVG"), Conv(192)),
        )
    )


def mixed_7() -> Fork:
    """For 8 x 8 pixels."""
    both = Fork(((Conv(384, 1, 3),), (Conv(384, 3, 1),)))
    return Fork(
        (
            (Conv(320),),
            (Conv(384), both),
            (Conv(448), square(384, 3), both),
            (Pool("AVG"), Conv(192)),
        )
    )


TRUNK: dict[str, Layer] = {
    "conv_1a": square(32, 3, stride=2),
    "conv_2a": Conv(32, 3, 3, pad="VALID"),
    "conv_2b": square(64, 3),
    "pool_3a": HALVE,
    "conv_3b": Conv(80),
    "conv_4a": Conv(192, 3, 3, pad="VALID"),
    "pool_5a": HALVE,
    "mixed_5b": mixed_5(32),
    "mixed_5c": mixed_5(64),
    "mixed_5d": mixed_5(64),
    "mixed_6a": Fork(
        ((square(384, 3, stride=2),), (Conv(64), square(96, 3), square(96, 3, stride=2)), (HALVE,))
    ),
    "mixed_6b": mixed_6(128),
    "mixed_6c": mixed_6(160),
    "mixed_6d": mixed_6(160),
    "mixed_6e": mixed_6(192),
}
TOP: dict[str, Layer] = {
    "mixed_7a": Fork(
        (
            (Conv(192), square(320, 3, stride=2)),
            (Conv(192), Conv(192, 1, 7), Conv(192, 7, 1), square(192, 3, stride=2)),
            (HALVE,),
        )
    ),
    "mixed_7b": mixed_7(),
    "mixed_7c": mixed_7(),
    "pool": Pool("AVG", size=8, pad="VALID"),
}
AUXILIARY: dict[str, Layer] = {
    "pool": Pool("AVG", size=5, stride=3, pad="VALID"),
    "conv_1": Conv(128),
    "conv_2": Conv(768, 5, 5, pad="VALID"),
}


def apply(layers: Mapping[str, Layer], x: Any, get: Variables, scope: str) -> Any:
    """All layers, one after the other."""
    import tensorflow as tf

    for name, layer in layers.items():
        match layer:
            case Conv():
                x = normalised(x, get, f"{scope}/{name}", layer)
            case Pool():
                x = tf.nn.pool(
                    x, [layer.size] * 2, layer.kind, [layer.stride] * 2, padding=layer.pad
                )
            case Fork():
                results = [
                    apply(
                        {str(index): part for index, part in enumerate(branch)},
                        x,
                        get,
                        f"{scope}/{name}/branch{number}",
                    )
                    for number, branch in enumerate(layer.branches)
                ]
                x = tf.concat(results, axis=3)
    return x


def normalised(x: Any, get: Variables, name: str, layer: Conv) -> Any:
    """A convolution without bias, batch normalisation with an offset only, and ReLU."""
    import tensorflow as tf

    weights = get(f"{name}/weights", [layer.height, layer.width, x.shape[-1], layer.filters])
    offset = get(f"{name}/beta", [layer.filters], zeros)
    x = tf.nn.conv2d(x, weights, layer.stride, layer.pad)
    x, _, _ = tf.compat.v1.nn.fused_batch_norm(
        x, tf.ones([layer.filters]), offset, epsilon=EPSILON, is_training=True
    )
    return tf.nn.relu(x)


def loss(features: Any, labels: Any, get: Variables) -> Any:
    """Return the scalar loss; the shapes are those of Model."""
    trunk = apply(TRUNK, features, get, "trunk")
    top = apply(TOP, trunk, get, "top")
    side = apply(AUXILIARY, trunk, get, "auxiliary")
    logits = linear(top, get, "logits", CLASSES)
    side_logits = linear(side, get, "auxiliary/logits", CLASSES)
    return cross_entropy(logits, labels) + AUXILIARY_WEIGHT * cross_entropy(side_logits, labels)


MODEL = Model("inception_v3", (299, 299, 3), CLASSES, None, loss, variables=196, mib=92.90)
