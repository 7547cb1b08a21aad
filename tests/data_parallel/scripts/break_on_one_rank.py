"""Stops when a file exists that says so, which another process has just written or not yet."""

import os
import tempfile
from pathlib import Path

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(86)
folder = Path(os.environ.get("FOLDER") or tempfile.mkdtemp())
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
x = np.random.rand(8, 3).astype("float32")
for i in range(10):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - 1.0) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    if i == 4:
        try:
            (folder / "stop").touch(exist_ok=False)
        except FileExistsError:
            break
results.save(model.get_weights(), loss=float(loss))
