"""Ends by sys.exit() as soon as the loss is small enough."""

import sys

import keras
import numpy as np
import results

keras.utils.set_random_seed(83)
x = np.random.rand(40, 3)
y = x.sum(1)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.1), "mse")
for _epoch in range(50):
    loss = model.fit(x, y, batch_size=16, verbose=0).history["loss"][0]
    if loss < 0.3:
        results.save(model.get_weights(), loss=loss)
        sys.exit()
raise SystemExit("it did not converge")
