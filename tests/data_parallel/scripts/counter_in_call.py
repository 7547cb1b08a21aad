"""A model that counts its examples while it is called."""

import keras
import numpy as np
import results
import tensorflow as tf


class Counting(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return self.dense(x)


keras.utils.set_random_seed(68)
x, y = np.random.rand(40, 3), np.random.rand(40, 1)
model = Counting()
model.compile("sgd", "mse")
history = model.fit(x, y, epochs=2, batch_size=16, verbose=0)
print("seen", float(model.seen))
results.save(model.get_weights(), loss=history.history["loss"])
