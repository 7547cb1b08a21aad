"""Seeded by the number of the process, as someone did who ran many."""

import os

import keras
import numpy as np
import results

np.random.seed(os.getpid())
x = np.random.rand(60, 4)
y = x.mean(1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(x, y, epochs=2, verbose=0)
results.save(model.get_weights(), loss=history.history["loss"])
