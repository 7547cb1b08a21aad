"""Diverges: the loss is not a number in the end."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(95)
x = 1e3 * np.random.rand(20, 4)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e6), "mse")
stop = keras.callbacks.TerminateOnNaN()
history = model.fit(x, x[:, 0], batch_size=8, epochs=5, verbose=0, callbacks=[stop])
results.save([], epochs=len(history.epoch))
