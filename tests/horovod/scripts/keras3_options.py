"""Options of distributed optimizers, tapes and callbacks with Keras 3, beyond ``keras3.py``."""

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import keras
import numpy as np
import pytest
import tensorflow as tf
from data import assert_equal

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
LAYERS, CALLBACKS = keras.layers, hvd_keras.callbacks
MEAN = (SIZE + 1) / 2  # of the ranks, counted from 1


class Adds(keras.optimizers.Optimizer):
    """Adds gradients to variables, which show them."""

    def __init__(self, learning_rate: float = 1.0, **options: Any) -> None:
        super().__init__(learning_rate, **options)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_add(variable, gradient)


def same_everywhere(values: Any) -> bool:
    every = hvd.allgather_object([np.asarray(value) for value in values])
    return all(np.array_equal(*pair) for pair in zip(every[0], every[-1], strict=True))


# Passes are added up, also sparse gradients, and a variable of one rank has its part of the mean.
for average in (True, False):
    shared, own = tf.Variable([1.0, 2.0]), keras.Variable([1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(
        Adds(), backward_passes_per_step=4, average_aggregated_gradients=average
    )
    optimizer.register_local_var(own)

    @tf.function
    def step(optimizer: Any, variables: list[Any]) -> None:
        with tf.GradientTape() as tape:
            rows = [tf.gather(each, [0]) for each in variables]
            loss = tf.reduce_sum(rows) * (RANK + 1)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for done in range(1, 11):
        step(optimizer, [shared, own.value])
        times = done // 4 * (1 if average else 4)
        np.testing.assert_allclose(shared, [1 + times * MEAN, 2])
        np.testing.assert_allclose(own, [1 + times * (RANK + 1) / SIZE, 2])
        assert int(optimizer.iterations) == done

# An infinite gradient is over with its step.
variable = tf.Variable(0.0)
optimizer = hvd.DistributedOptimizer(Adds(), backward_passes_per_step=2)
for gradient in (np.inf, 1.0, 2.0, 3.0):
    if gradient == 2:
        assert np.isinf(variable.numpy())
        variable.assign(0)
    optimizer.apply_gradients([(tf.constant(gradient), variable)])
assert float(variable) == 5

# An embedding: ranks have the same rows and others.
words = np.random.default_rng(0).integers(20, size=(4, SIZE, 6, 3))
meanings = np.random.default_rng(1).normal(size=(4, SIZE, 6, 3, 4))


def embedding() -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,), dtype="int32"), LAYERS.Embedding(20, 4)])


for passes in (1, 2):
    expected = embedding()
    expected.compile(keras.optimizers.SGD(10.0, momentum=0.9), "mse")
    for x, y in zip(
        words.reshape(4 // passes, -1, 3), meanings.reshape(4 // passes, -1, 3, 4), strict=True
    ):
        expected.train_on_batch(x, y)
    for dense in (True, False):
        model = embedding()
        optimizer = hvd_keras.DistributedOptimizer(
            keras.optimizers.SGD(10.0, momentum=0.9),
            sparse_as_dense=dense,
            backward_passes_per_step=passes,
            average_aggregated_gradients=True,
        )
        model.compile(optimizer, "mse")
        for x, y in zip(words[:, RANK], meanings[:, RANK], strict=True):
            model.train_on_batch(x, y)
        assert_equal(model.get_weights(), expected.get_weights())


# Layers of one rank, for optimizers and tapes.
def dense_model(**options: Any) -> Any:
    start = keras.initializers.Constant(RANK + 1.0)
    layer = {"kernel_initializer": start, "bias_initializer": start} | options
    return keras.Sequential([keras.Input((3,)), LAYERS.Dense(2, **layer), LAYERS.Dense(2, **layer)])


def gradients_of(model: Any, make: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 3])) ** 2)
    return make(tape).gradient(loss, model.trainable_weights)


for scaled in (True, False):
    for local in (0, 1, 2):
        model = dense_model()
        weights = model.trainable_weights
        expected = gradients_of(model, lambda tape: tape)
        for index in range(2 * local, 4):
            expected[index] = hvd.allreduce(expected[index])
        for index in range(2 * local):
            expected[index] /= SIZE if scaled else 1
        options = {"local_layers": model.layers[:local], "scale_local_gradients": scaled}
        found = gradients_of(
            model, lambda tape, given=options: hvd.PartialDistributedGradientTape(tape, **given)
        )
        assert_equal(found, expected)
        expected = [weight + each for weight, each in zip(weights, expected, strict=True)]
        optimizer = hvd_keras.PartialDistributedOptimizer(Adds(), **options)
        optimizer.apply(gradients_of(model, lambda tape: tape), weights)
        assert_equal(weights, expected)

# Variables that each rank has in another shape.
model = keras.Sequential([keras.Input((2,), dtype="int32"), LAYERS.Embedding(7 + RANK, SIZE)])
layer = LAYERS.Dense(1, use_bias=False, kernel_initializer="ones")
with tf.GradientTape() as tape:
    total = tf.reduce_sum(layer(hvd.alltoall(model(tf.constant([[6, 6 + RANK]] * SIZE)))))
tape = hvd.DistributedGradientTape(tape)
tape.register_local_source(model.weights[0])
((variable, own),), ((other, _),) = tape.get_local_and_global_gradients(
    total, [model.weights[0], layer.kernel]
)
assert variable is model.weights[0]
assert other is layer.kernel
assert own.dense_shape.numpy().tolist() == [7 + RANK, SIZE]

# The last rank's variables are broadcast, except for those of one layer.
model = dense_model(trainable=False)
model.compile(loss="mse")
local = model.layers[0].weights
hook = CALLBACKS.BroadcastGlobalVariablesCallback(SIZE - 1, local_variables=local)
model.fit(np.ones((1, 3)), np.ones((1, 2)), verbose=0, callbacks=[hook])
for value in model.get_weights()[:2]:
    np.testing.assert_array_equal(value, np.full_like(value, RANK + 1))
for value in model.get_weights()[2:]:
    np.testing.assert_array_equal(value, np.full_like(value, SIZE))


# A class of the user's, and a training that only rank 0 has the file of.
class Mine(keras.optimizers.SGD):
    pass


def loss(y: Any, found: Any) -> Any:
    return keras.ops.mean((y - found) ** 2)


x, y = np.ones((2, 3)) * (RANK + 1), np.ones((2, 2))
folder = Path(tempfile.mkdtemp())
model = dense_model()
model.compile(hvd_keras.DistributedOptimizer(Mine(0.01, momentum=0.9)), loss)
model.fit(x, y, verbose=0, epochs=3, callbacks=[CALLBACKS.BroadcastGlobalVariablesCallback(0)])
for name in ("model.keras", "model.h5"):
    model.save(folder / name)
    resumed = dense_model()
    resumed.compile(hvd_keras.DistributedOptimizer(Mine(0.01, momentum=0.9)), loss)
    if RANK == 0:
        with pytest.raises((TypeError, ValueError)):
            hvd_keras.load_model(folder / name)
        resumed = hvd_keras.load_model(folder / name, [Mine], {"loss": loss})
        assert isinstance(resumed.optimizer, Mine)
    hook = CALLBACKS.BroadcastGlobalVariablesCallback(0)
    resumed.fit(x, y, verbose=0, epochs=2, callbacks=[hook])
    assert same_everywhere(resumed.get_weights() + resumed.optimizer.variables)
    assert int(resumed.optimizer.iterations) == 5


# Steps of a model's own cannot be compiled either, whatever reduces their gradients.
class Stepping(keras.Model):
    def __init__(self, tape: bool) -> None:
        super().__init__()
        self.dense = LAYERS.Dense(1, kernel_initializer="ones", use_bias=False)
        self.dense.build((None, 3))
        self.taped = tape
        self.built = True
        optimizer = keras.optimizers.SGD(1.0)
        self.own = optimizer if tape else hvd_keras.DistributedOptimizer(optimizer)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self(data[0])) / 2
        tape = hvd.DistributedGradientTape(tape) if self.taped else tape
        self.own.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


for taped in (True, False):
    model = Stepping(taped)
    model.compile(jit_compile=True)
    with pytest.warns(UserWarning, match="without XLA") if RANK == 0 else contextlib.nullcontext():
        model.fit(x, y, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], np.full((3, 1), 1 - MEAN))

# One rate for each epoch, by functions and numbers.
model = dense_model()
model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss)
schedules = [
    CALLBACKS.LearningRateScheduleCallback(0.1, lambda epoch: epoch, end_epoch=2),
    CALLBACKS.LearningRateScheduleCallback(0.1, 0.01, start_epoch=2, end_epoch=3),
    CALLBACKS.LearningRateScheduleCallback(0.1, lambda epoch: epoch, start_epoch=3),
]
rates = model.fit(x, y, epochs=4, verbose=0, callbacks=schedules).history["lr"]
np.testing.assert_allclose(rates, [0, 0.1, 0.001, 0.3], rtol=1e-5)
print("done")
