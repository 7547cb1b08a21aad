"""Attention by relative positions: a table whose rows do not follow from examples."""

import keras
import numpy as np
import results
import tensorflow as tf
from keras import ops


class Attention(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.bias = keras.layers.Embedding(7, 1)
        self.place = keras.layers.Embedding(4, 3)

    def call(self, x):
        places = ops.arange(ops.shape(x)[1])
        bias = self.bias(places[:, None] - places[None, :] + 3)
        return ops.matmul(ops.softmax(bias[..., 0]), x + self.place(places))


keras.utils.set_random_seed(81)
x, y = np.random.rand(24, 4, 3).astype("float32"), np.random.rand(24, 1).astype("float32")
layers = [keras.Input((4, 3)), Attention(), keras.layers.Flatten(), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile(keras.optimizers.Adam(0.05), "mse")
history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
for i in range(0, 24, 8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x[i : i + 8]) - y[i : i + 8]) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
results.save(model.get_weights(), loss=history.history["loss"], last=float(loss))
