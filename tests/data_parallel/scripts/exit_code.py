"""Ends with a code of its own after training."""

import sys

import keras
import numpy as np
import results

keras.utils.set_random_seed(84)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 3)), np.ones(8), verbose=0)
results.save(model.get_weights())
sys.exit(3)
