"""Training with Keras 3 by ``set_distribution()``: what the scripts do not show.

usage: cases.py FOLDER RANKS

Writes what each case returns into the folder, by rank. Cases return what one process must have,
too; rules are for several ranks only.
"""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import rdma_transport.tensorflow as rt
from rdma_transport.keras import DataParallel, set_distribution

CASES: dict[str, Callable[[], Any]] = {}
RULES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Add a case."""
    CASES[function.__name__] = function
    return function


def rule(function: Callable[[], Any]) -> Callable[[], Any]:
    """Add a rule."""
    RULES[function.__name__] = function
    return function


def data(examples=40, features=6, classes=3):
    """Return examples and labels."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(examples, features)).astype("float32")
    return x, generator.integers(0, classes, examples)


def dense(features=6, classes=3, **options):
    """Return a small model."""
    inputs = keras.Input((features,))
    hidden = keras.layers.Dense(8, activation="tanh", **options)(inputs)
    return keras.Model(inputs, keras.layers.Dense(classes)(hidden))


def crossentropy(**options):
    """Return the usual loss."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def compiled(model, **options):
    """Return a model that is ready to be trained."""
    options = {
        "optimizer": keras.optimizers.Adam(0.01),
        "loss": crossentropy(),
        "metrics": ["accuracy"],
    } | options
    model.compile(**options)
    return model


def fitted(model, *args, **options):
    """Return the history and the weights after training."""
    history = model.fit(*args, **({"batch_size": 16, "epochs": 2, "verbose": 0} | options))
    return [np.array(each) for each in history.history.values()] + model.get_weights()


@case
def arrays():
    model = compiled(dense())
    found = fitted(model, *data(), validation_split=0.2)
    return [*found, *model.evaluate(*data(), verbose=0), model.predict(data()[0], verbose=0)]


@case
def forward_in_a_function_and_gradient_outside():
    model, (x, y) = dense(), data()
    forward = tf.function(lambda x: model(x))
    with tf.GradientTape() as tape:
        loss = crossentropy()(y, forward(x)) + crossentropy()(y, forward(-x))
    return [loss, *tape.gradient(loss, model.trainable_variables)]


@case
def two_tapes_around_a_function():
    model, (x, y) = dense(), data()
    forward = tf.function(lambda x: model(x))
    with tf.GradientTape() as first, tf.GradientTape() as second:
        loss = crossentropy()(y, forward(x))
    found = first.gradient(loss, model.trainable_variables)
    return found + second.gradient(loss, model.trainable_variables)


@case
def synchronized_statistics():
    with DataParallel(sync_batch_norm=True).scope():
        inputs = keras.Input((6,))
        hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, use_bias=False)(inputs))
        return fitted(compiled(keras.Model(inputs, keras.layers.Dense(3)(hidden))), *data())


@case
def synchronized_statistics_of_tf_keras():
    with DataParallel(sync_batch_norm=True).scope():
        first = tf_keras.layers.Dense(8, use_bias=False)
        normalization = tf_keras.layers.BatchNormalization()
        model = tf_keras.Sequential([first, normalization, tf_keras.layers.Dense(3)])
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
        return fitted(model, *data())


class Layer(keras.layers.Layer):
    """A layer that computes a function of inputs and `training`."""

    scale = 1.0

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.seeds = keras.random.SeedGenerator(3)
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, x, training=False):
        return self.function(self, x, training)


def model_with(*layers):
    """Return a model with these layers before the last."""
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])


def is_refused(function, match):
    """See that a function raises on all ranks."""
    with pytest.raises(Exception, match=f"(?s){match}"):
        function()
    return []


@rule
def what_depends_on_the_number_of_examples_is_refused():
    layer = Layer(lambda self, x, training: x / tf.cast(tf.shape(x)[0], x.dtype))
    return is_refused(lambda: model_with(layer)(data()[0]), "depend on the other")


@rule
def counts_of_calls_are_kept():
    def add(self, x, training):
        self.count.assign_add(1.0)
        return x

    layer = Layer(add)
    fitted(compiled(model_with(layer)), *data(), epochs=1)
    return [layer.count]


@rule
def counts_of_examples_are_refused():
    def add(self, x, training):
        self.count.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return x

    noise = keras.layers.GaussianNoise(0.1)
    for layers in ([Layer(add)], [Layer(add), noise]):
        model = compiled(model_with(*layers))
        is_refused(lambda: fitted(model, *data()), "variables that it assigns")  # noqa: B023
    return []


@rule
def weights_that_differ_after_an_update_are_refused():
    model, (x, y) = compiled(dense()), data()
    model.train_on_batch(x, y)
    for _ in range(8):
        model.train_on_batch(x, y)
    model.layers[1].bias.assign(np.full(8, rt.world().rank))
    return is_refused(lambda: model.train_on_batch(x, y), "Variables that differ.*dense.*bias")


@rule
def first_weights_are_those_of_rank_0():
    keras.utils.set_random_seed(100 + rt.world().rank)
    model, (x, _) = dense(), data()
    model(x)
    return model.get_weights()


@rule
def dropout_differs_between_slices():
    model = keras.Sequential([keras.Input((50,)), keras.layers.Dropout(0.5)])
    found = model(np.ones((4, 50), "float32"), training=True).numpy()
    assert (found[0] != found[2]).any()
    again = model(np.ones((4, 50), "float32"), training=True).numpy()
    assert (found != again).any()
    return [found, again, *fitted(compiled(model_with(keras.layers.Dropout(0.5))), *data())]


@rule
def statistics_are_averaged():
    model = model_with(keras.layers.BatchNormalization(momentum=0.5))
    x, y = data()
    found = fitted(compiled(model), x, y, epochs=1, batch_size=40, shuffle=False)
    means = (x[:20].mean(0) + x[20:].mean(0)) / 4.0
    np.testing.assert_allclose(model.layers[0].moving_mean, means, rtol=1e-4, atol=1e-5)
    return found


@rule
def tables_are_not_cut():
    class Model(keras.Model):
        def call(self, pair):
            return tf.matmul(pair[0], pair[1])

    model, (x, _), table = Model(), data(10), tf.random.normal((6, 4), seed=1)
    step = tf.function(lambda x: model([x, table]), input_signature=[tf.TensorSpec([None, 6])])
    np.testing.assert_allclose(step(x), tf.matmul(x, table), rtol=1e-5)
    unknown = tf.TensorSpec([None, None])
    step = tf.function(lambda x, y: model([x, y]), input_signature=[unknown, unknown])
    return is_refused(lambda: step(x, table), "different first dimensions")


def main() -> None:
    """Run all cases, and the rules on several ranks."""
    folder, several = sys.argv[1], sys.argv[2] != "1"
    if several:
        set_distribution(DataParallel())
    rank = rt.world().rank if several else 0
    for name, function in (CASES | RULES if several else CASES).items():
        tf_keras.utils.set_random_seed(7)
        keras.utils.set_random_seed(7)
        try:
            found = [np.asarray(each, "float64") for each in function()]
        except Exception:
            Path(folder, f"{name}.{rank}.error").write_text(traceback.format_exc())
        else:
            np.savez(Path(folder, f"{name}.{rank}.npz"), *found)


if __name__ == "__main__":
    main()
