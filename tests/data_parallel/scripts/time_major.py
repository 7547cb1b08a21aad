"""A recurrent network of one's own, with time as the first dimension."""

import keras
import numpy as np
import results
import tensorflow as tf


class TimeMajor(keras.Model):
    def __init__(self, units=5):
        super().__init__()
        self.units = units
        self.cell = keras.layers.SimpleRNNCell(units)
        self.out = keras.layers.Dense(1)

    def call(self, series):
        state = tf.zeros((tf.shape(series)[1], self.units))
        outputs = tf.TensorArray(tf.float32, tf.shape(series)[0])
        for t in tf.range(tf.shape(series)[0]):
            state, _ = self.cell(series[t], [state])
            outputs = outputs.write(t, self.out(state))
        return outputs.stack()


keras.utils.set_random_seed(40)
model = TimeMajor()
optimizer = keras.optimizers.SGD(0.1)
x = np.random.randn(8, 6, 2).astype("float32")  # time, example, feature
y = np.cumsum(x.sum(-1, keepdims=True), 0)
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    grads = tape.gradient(loss, model.trainable_weights)
    optimizer.apply_gradients(zip(grads, model.trainable_weights, strict=True))
results.save(model.get_weights(), loss=float(loss))
