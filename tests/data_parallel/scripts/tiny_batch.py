"""Stochastic gradient descent with one example, and with two."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(48)
x = np.random.rand(9, 3).astype("float32")
y = x[:, :1] - x[:, 1:2]
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
one = model.fit(x, y, batch_size=1, epochs=2, verbose=0)
two = model.fit(x, y, batch_size=2, epochs=2, verbose=0)
results.save(model.get_weights(), one=one.history["loss"], two=two.history["loss"])
