"""tf-keras, with optimizers of both kinds: as ``keras3.py``."""

import os
import tempfile
from pathlib import Path
from typing import Any

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from data import BATCH, STEPS, assert_equal, data_of

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
keras: Any = tf.keras
assert "tf_keras" in keras.__name__
OPTIMIZERS = keras.optimizers.legacy if os.environ["KIND"] == "legacy" else keras.optimizers


def model_of(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    return keras.Sequential([layers.Dense(4, "tanh", input_shape=(5,)), layers.Dense(1)])


def fit(model: Any, optimizer: Any, rank: int, passes: int = 1, **options: Any) -> Any:
    model.compile(optimizer, "mse")
    x, y = data_of(rank, SIZE)
    batch = BATCH if rank >= 0 else BATCH * SIZE * passes
    return model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0, **options).history


def same_everywhere(model: Any) -> bool:
    one, other = hvd.allgather_object(model.get_weights())[:2]
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# Equal weights, and a rate that rises.
expected = model_of(0)
history = fit(expected, OPTIMIZERS.Adam(0.05, clipnorm=1.0), -1)
model = model_of(0)
optimizer = hvd.DistributedOptimizer(OPTIMIZERS.Adam(0.05, clipnorm=1.0))
found = fit(model, optimizer, RANK, callbacks=[hvd.callbacks.MetricAverageCallback()])
assert_equal(model.get_weights(), expected.get_weights())
assert_equal([found["loss"]], [history["loss"]])
assert same_everywhere(model)

# Saved and loaded, with and without this package.
folder = Path(tempfile.mkdtemp())
for name in ("model.keras", "model.h5"):
    model.save(folder / name)
    plain = keras.models.load_model(folder / name)
    assert type(plain.optimizer).__name__ == "Adam"
    assert not hasattr(plain.optimizer, "register_local_var")
    loaded = hvd.load_model(folder / name)
    x, y = data_of(RANK, SIZE)
    loaded.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert same_everywhere(loaded)

# The weights of rank 1 count from the second batch on, and momentum is corrected.
model = model_of(RANK)
rates = fit(
    model,
    hvd.DistributedOptimizer(OPTIMIZERS.SGD(0.1, momentum=0.5), compression=hvd.Compression.fp16),
    RANK,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(1),
        hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2),
    ],
)["lr"]
assert same_everywhere(model)
np.testing.assert_allclose(rates, [0.05 + 0.1 / 4, 0.1], rtol=1e-5)

# Several passes, and a clipped gradient between the two halves of a step.
for passes in (2, 4):
    expected = model_of(0)
    fit(expected, OPTIMIZERS.SGD(0.05), -1, passes)
    model = model_of(0)
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS.SGD(0.05), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    fit(model, optimizer, RANK)
    assert_equal(model.get_weights(), expected.get_weights())
    assert int(optimizer.iterations) == 2 * STEPS
variable = tf.Variable([1.0, 2.0])
optimizer = hvd.DistributedOptimizer(OPTIMIZERS.SGD(1.0), op=hvd.Sum)
for _ in range(2):
    pairs = optimizer._compute_gradients(lambda: variable * float(RANK + 1), [variable])
    optimizer.apply_gradients([(gradient / 3, each) for gradient, each in pairs])
np.testing.assert_allclose(variable, [-1, 0])

# A scaled loss.
keras.mixed_precision.set_global_policy("mixed_float16")
model = model_of(0)
keras.mixed_precision.set_global_policy("float32")
model.compile(hvd.DistributedOptimizer(OPTIMIZERS.SGD(0.01)), "mse")
x, y = data_of(RANK, SIZE)
if RANK == 1:
    x[0] = np.inf
model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
assert same_everywhere(model)
scales = hvd.allgather_object(float(model.optimizer.loss_scale))
assert scales == [model.optimizer.initial_scale / 2] * SIZE, scales
assert all(np.isfinite(each).all() for each in model.get_weights())

layer, oracle = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
values = tf.constant(np.random.default_rng(0).normal(size=(6 * SIZE, 3)).astype(np.float32))
whole = oracle(values, training=True)
mine = slice(6 * RANK, 6 * RANK + 6)
np.testing.assert_allclose(layer(values[mine], training=True), whole[mine], atol=1e-5)
np.testing.assert_allclose(layer.moving_mean, oracle.moving_mean, atol=1e-5)
print("done")
