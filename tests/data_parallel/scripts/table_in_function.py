"""Positions that are looked up in a function of TensorFlow."""

import keras
import numpy as np
import tensorflow as tf


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(3, 1)
        self.last = keras.layers.Dense(1)

    def build(self, shape):
        self.table.build(None)
        self.last.build(shape)

    @tf.function
    def moved(self, x):
        return x + self.table(tf.range(3))[:, 0]

    def call(self, x):
        return self.last(self.moved(x))


x, y = np.random.rand(8, 3).astype("float32"), np.random.rand(8, 1).astype("float32")
model = Model()
with tf.GradientTape() as tape:
    loss = tf.reduce_mean((model(x) - y) ** 2)
grads = tape.gradient(loss, model.trainable_variables)
