"""A small convolutional network for 8x8 digits, trained synchronously by two workers.

Plain TensorFlow: nothing here knows how tensors travel.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
SEED = 11
BATCH = 64  # per worker
HIDDEN = 512  # the dense layer's weights are 4096 x 512, 8 MiB


@dataclass
class Placement:
    """Where variables live and where the two towers run."""

    ps: str
    workers: tuple[str, str]


SPREAD = Placement("/job:ps/task:0", ("/job:worker/task:0", "/job:worker/task:1"))
TOGETHER = Placement("/job:worker/task:0", ("/job:worker/task:0",) * 2)


@dataclass
class Model:
    """What to feed and fetch."""

    images: list[Any]
    labels: list[Any]
    loss: Any
    train: Any
    test_images: Any
    predictions: Any
    initializer: Any


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels, test images and labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    images = (digits.images[order] / 16.0).astype(np.float32)[..., None]
    labels = digits.target[order].astype(np.int32)
    split = len(labels) - 360
    return images[:split], labels[:split], images[split:], labels[split:]


def feeds(model: Model) -> Iterator[dict[Any, Any]]:
    """A batch for each worker and step, without end; the same ones each time."""
    images, labels, _, _ = data()
    order = np.random.default_rng(SEED)
    while True:
        feed: dict[Any, Any] = {}
        for image_in, label_in in zip(model.images, model.labels, strict=True):
            batch = order.integers(0, len(labels), BATCH)
            feed |= {image_in: images[batch], label_in: labels[batch]}
        yield feed


def build(placement: Placement) -> Model:
    """The training graph, in the default graph."""
    shapes = {
        "conv1": [3, 3, 1, 32],
        "conv2": [3, 3, 32, 64],
        "dense": [8 * 8 * 64, HIDDEN],
        "bias": [HIDDEN],
        "out": [HIDDEN, 10],
    }
    variables = {}
    with tf.device(placement.ps):
        for i, (name, shape) in enumerate(shapes.items()):
            scale = float(np.sqrt(2.0 / np.prod(shape[:-1])))
            start = v1.random_normal_initializer(stddev=scale, seed=SEED + i)
            variables[name] = v1.get_variable(name, shape, initializer=start, use_resource=True)

    def logits(images: Any, weights: dict[str, Any]) -> Any:
        x = tf.nn.relu(tf.nn.conv2d(images, weights["conv1"], 1, "SAME"))
        x = tf.nn.relu(tf.nn.conv2d(x, weights["conv2"], 1, "SAME"))
        x = tf.reshape(x, [-1, 8 * 8 * 64])
        x = tf.nn.relu(tf.matmul(x, weights["dense"]) + weights["bias"])
        return tf.matmul(x, weights["out"])

    towers: list[dict[str, Any]] = []
    for worker in placement.workers:
        with tf.device(worker):
            images = v1.placeholder(tf.float32, [None, 8, 8, 1])
            labels = v1.placeholder(tf.int32, [None])
            weights = {name: tf.identity(v.read_value()) for name, v in variables.items()}
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels=labels, logits=logits(images, weights)
                )
            )
            gradients = tf.gradients(loss, list(weights.values()))
            towers.append(
                {"images": images, "labels": labels, "loss": loss, "gradients": gradients}
            )
    with tf.device(placement.ps):
        # One fixed order of summation, so that the result does not depend on who is first.
        updates = [
            v1.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=0.05, delta=(first + second) * 0.5
            )
            for variable, first, second in zip(
                variables.values(), towers[0]["gradients"], towers[1]["gradients"], strict=True
            )
        ]
        loss = (towers[0]["loss"] + towers[1]["loss"]) * 0.5
    with tf.device(placement.workers[0]):
        test_images = v1.placeholder(tf.float32, [None, 8, 8, 1])
        current = {name: tf.identity(v.read_value()) for name, v in variables.items()}
        predictions = tf.argmax(logits(test_images, current), 1)
    return Model(
        images=[tower["images"] for tower in towers],
        labels=[tower["labels"] for tower in towers],
        loss=loss,
        train=tf.group(*updates),
        test_images=test_images,
        predictions=predictions,
        initializer=v1.global_variables_initializer(),
    )
