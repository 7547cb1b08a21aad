"""A model that only runs eagerly: its call has loops and conditions on values of tensors."""

import keras
import numpy as np
import results
import tensorflow as tf


class Unrolled(keras.Model):
    def __init__(self, units=5):
        super().__init__()
        self.units = units
        self.cell = keras.layers.GRUCell(units)
        self.out = keras.layers.Dense(1)

    def call(self, series):
        state = tf.zeros((len(series), self.units))
        for t in tf.range(tf.shape(series)[1]):
            state, _ = self.cell(series[:, t], [state])
            if tf.reduce_any(tf.math.is_nan(state)):
                raise ValueError(f"not a number at {t.numpy()}")
        return self.out(state)


keras.utils.set_random_seed(100)
model, optimizer = Unrolled(), keras.optimizers.SGD(0.1)
x = np.random.randn(26, 6, 2).astype("float32")
y = x.sum((1, 2))[:, None]
losses = []
for i in (0, 9, 18):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x[i : i + 9]) - y[i : i + 9]) ** 2)
    grads = tape.gradient(loss, model.trainable_weights)
    optimizer.apply_gradients(zip(grads, model.trainable_weights, strict=True))
    losses.append(float(loss))
results.save(model.get_weights(), losses=losses)
