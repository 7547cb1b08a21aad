"""A model that compares each example with the mean of its batch."""

import keras
import numpy as np
import results
import tensorflow as tf


class Centered(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, "relu")
        self.out = keras.layers.Dense(1)

    def call(self, x):
        x = self.dense(x)
        return self.out(x - tf.reduce_mean(x, axis=0, keepdims=True))


keras.utils.set_random_seed(38)
x, y = np.random.rand(40, 5), np.random.rand(40, 1)
model = Centered()
model.compile("adam", "mse")
history = model.fit(x, y, batch_size=10, epochs=2, verbose=0)
results.save(model.get_weights(), **history.history)
