"""A table whose rows are looked up for examples, and for a start that all have in common."""

import keras
import numpy as np
import tensorflow as tf


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(9, 4)
        self.last = keras.layers.Dense(1)

    def call(self, ids):
        start = self.table(tf.constant([0, 1]))
        return self.last(tf.reduce_mean(self.table(ids), 1) * start[0] + start[1])


x, y = np.random.randint(2, 9, (24, 3)), np.random.rand(24, 1)
model = Model()
model.compile("adam", "mse")
model.fit(x, y, batch_size=8, verbose=0)
