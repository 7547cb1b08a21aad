"""A model that uses a tensor which was computed outside of its call, from a variable."""

import keras
import numpy as np
import results
import tensorflow as tf


class Scaled(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.scale = None

    def call(self, x):
        return self.dense(x) * self.scale


keras.utils.set_random_seed(99)
x, y = np.random.rand(30, 4).astype("float32"), np.random.rand(30, 1).astype("float32")
logarithm = tf.Variable([0.5])
model, optimizer = Scaled(), keras.optimizers.SGD(0.1)
losses = []
for i in (0, 10, 20):
    with tf.GradientTape() as tape:
        model.scale = tf.exp(logarithm)
        loss = tf.reduce_mean((model(x[i : i + 10], training=True) - y[i : i + 10]) ** 2)
    variables = [*model.trainable_variables, logarithm]
    grads = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(grads, variables, strict=True))
    losses.append(float(loss))
results.save([v.numpy() for v in variables], losses=losses)
