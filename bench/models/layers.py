"""Layers that several models use. Images are [batch, height, width, channels]."""

from typing import Any

from .model import BEFORE_OTHER, BEFORE_RELU, Initializer, Variables, zeros


def convolution(
    x: Any, get: Variables, name: str, size: int, filters: int, stride: int = 1, pad: str = "SAME"
) -> Any:
    """A square convolution with bias and ReLU."""
    import tensorflow as tf

    weights = get(f"{name}/weights", [size, size, x.shape[-1], filters])
    biases = get(f"{name}/biases", [filters], zeros)
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, weights, stride, pad), biases))


def linear(
    x: Any, get: Variables, name: str, outputs: int, initializer: Initializer = BEFORE_OTHER
) -> Any:
    """A fully connected layer with bias; all dimensions but the first are inputs."""
    import tensorflow as tf

    flat = tf.reshape(x, [x.shape[0], -1])
    weights = get(f"{name}/weights", [flat.shape[1], outputs], initializer)
    return tf.nn.bias_add(tf.matmul(flat, weights), get(f"{name}/biases", [outputs], zeros))


def dense(x: Any, get: Variables, name: str, outputs: int) -> Any:
    """A fully connected layer with bias and ReLU."""
    import tensorflow as tf

    return tf.nn.relu(linear(x, get, name, outputs, BEFORE_RELU))


def max_pool(x: Any, size: int) -> Any:
    """The maximum of each square of `size`, two pixels apart, within the image."""
    import tensorflow as tf

    return tf.nn.max_pool2d(x, size, 2, "VALID")


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over the batch, of integer labels."""
    import tensorflow as tf

    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
