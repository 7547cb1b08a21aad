"""Keras 3: a distributed ``fit()`` gives the weights of one process with all batches."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import tensorflow as tf
from data import BATCH, STEPS, assert_equal, data_of

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
LAYERS = keras.layers


def plain_model(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((5,)), LAYERS.Dense(4, "tanh"), LAYERS.Dense(1)])


def fit(model: Any, optimizer: Any, rank: int, **options: Any) -> Any:
    """Train for two epochs; rank -1: with the examples of all ranks."""
    callbacks = options.pop("callbacks", [])
    model.compile(optimizer, keras.losses.MeanSquaredError(), **options)
    x, y = data_of(rank, SIZE)
    batch = BATCH if rank >= 0 else BATCH * SIZE
    history = model.fit(
        x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=callbacks
    )
    return history.history


def adam() -> Any:
    return keras.optimizers.Adam(0.05, clipnorm=1.0)


def callbacks() -> list[Any]:
    return [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]


# The weights of rank 0 count, and metrics are those of all.
expected = plain_model(0)
history = fit(expected, adam(), -1)
model = plain_model(RANK)
optimizer = adam()
assert hvd.DistributedOptimizer(optimizer) is optimizer
assert isinstance(optimizer, keras.optimizers.Adam)
found = fit(model, optimizer, RANK, callbacks=callbacks())
assert_equal(model.get_weights(), expected.get_weights())
assert_equal([found["loss"]], [history["loss"]])
every = hvd.allgather_object(model.get_weights())
assert all(np.array_equal(a, b) for a, b in zip(every[0], every[1], strict=True))

# Saved and loaded, with and without this package; what is loaded goes on like the original.
config = expected.optimizer.get_config() | {"name": optimizer.name}
assert optimizer.get_config() == config
folder = Path(tempfile.mkdtemp())
for name in ("model.keras", "model.h5"):
    model.save(folder / name)
    plain = keras.models.load_model(folder / name)
    assert type(plain.optimizer) is keras.optimizers.Adam
    loaded = hvd.load_model(folder / name)
    assert isinstance(loaded.optimizer, keras.optimizers.Adam)
    assert int(loaded.optimizer.iterations) == 2 * STEPS
    x, y = data_of(RANK, SIZE)
    loaded.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    weights = hvd.allgather_object(loaded.get_weights())
    assert all(np.array_equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
copy = optimizer.from_config(optimizer.get_config())
assert type(copy) is type(optimizer)

# XLA, a schedule, compression and other operations.
schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)
expected = plain_model(0)
fit(expected, keras.optimizers.SGD(schedule, momentum=0.9), -1)
model = plain_model(0)
optimizer = hvd.DistributedOptimizer(
    keras.optimizers.SGD(schedule, momentum=0.9), gradient_predivide_factor=2.0
)
with warnings.catch_warnings():
    warnings.simplefilter("always")
    fit(model, optimizer, RANK, jit_compile=True)
assert_equal(model.get_weights(), expected.get_weights())

# Gradients of several passes: with the average, one step with all of their examples.
for passes, average in ((2, True), (2, False), (4, True)):
    expected = plain_model(0)
    rate = 0.05 if average else 0.05 * passes
    expected.compile(keras.optimizers.SGD(rate), keras.losses.MeanSquaredError())
    x, y = data_of(-1, SIZE)
    size = BATCH * SIZE * passes
    expected.fit(x, y, batch_size=size, epochs=2, shuffle=False, verbose=0)
    model = plain_model(0)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.05),
        backward_passes_per_step=passes,
        average_aggregated_gradients=average,
    )
    fit(model, optimizer, RANK)
    assert_equal(model.get_weights(), expected.get_weights())
    assert int(optimizer.iterations) == 2 * STEPS

# A scaled loss: all ranks skip the same step, although one of them alone has an infinite gradient.
keras.config.set_dtype_policy("mixed_float16")
model = plain_model(0)
keras.config.set_dtype_policy("float32")
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
model.compile(optimizer, keras.losses.MeanSquaredError())
x, y = data_of(RANK, SIZE)
assert type(model.optimizer).__name__ == "LossScaleOptimizer"
if RANK == 1:
    x[0] = np.inf
model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
assert int(optimizer.iterations) == STEPS - 1, int(optimizer.iterations)
weights = hvd.allgather_object(model.get_weights())
assert all(np.array_equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
assert np.isfinite(weights[0][0]).all()

# A scheduled rate, which rises from that of one rank.
model = plain_model(0)
x, y = data_of(RANK, SIZE)
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
model.compile(loss="mse", optimizer=optimizer, experimental_run_tf_function=False)
rates = model.fit(
    x,
    y,
    batch_size=BATCH,
    epochs=4,
    verbose=0,
    callbacks=[
        hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2),
        hvd.callbacks.LearningRateScheduleCallback(0.1, 0.1, start_epoch=3),
    ],
).history["lr"]
half = 0.1 / SIZE
np.testing.assert_allclose(rates, [half + 0.1 / 4, 0.1, 0.1, 0.01], rtol=1e-5)

# Variables of one rank.
model = plain_model(0)
local = model.layers[0]
optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=local)
fit(model, optimizer, RANK)
weights = hvd.allgather_object(model.get_weights())
assert not np.array_equal(weights[0][0], weights[1][0])
assert np.array_equal(weights[0][-1], weights[1][-1])

# Batches of all ranks are normalized as one.
layer, oracle = hvd.SyncBatchNormalization(), LAYERS.BatchNormalization()
values = tf.constant(np.random.default_rng(0).normal(size=(6 * SIZE, 3)).astype(np.float32))
expected = oracle(values, training=True)
mine = slice(6 * RANK, 6 * RANK + 6)
np.testing.assert_allclose(layer(values[mine], training=True), expected[mine], atol=1e-5)
np.testing.assert_allclose(layer.moving_variance, oracle.moving_variance, atol=1e-5)
print("done")
