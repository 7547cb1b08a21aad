"""A layer that mixes each example with another one, in training only."""

import keras
import numpy as np
import results
import tensorflow as tf


class MixUp(keras.layers.Layer):
    def call(self, x, training=False):
        if not training:
            return x
        return 0.9 * x + 0.1 * tf.roll(x, 1, axis=0)


keras.utils.set_random_seed(70)
x, y = np.random.rand(160, 5), np.random.rand(160, 1)
model = keras.Sequential([keras.Input((5,)), MixUp(), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
history = model.fit(x, y, epochs=3, batch_size=16, verbose=0)
results.save(model.get_weights(), metric=model.evaluate(x, y, verbose=0))
