"""Gradients clipped by value, by norm, by their norm together, and by hand."""

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(24)
x = 10 * np.random.randn(33, 4).astype("float32")
y = x[:, :1] * 3


def make():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(1)]
    )


weights = []
for options in ({"clipvalue": 0.5}, {"clipnorm": 1.0}, {"global_clipnorm": 1.0}):
    model = make()
    model.compile(keras.optimizers.SGD(0.05, **options), "mse")
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    weights += model.get_weights()
model, optimizer = make(), keras.optimizers.Adam(0.01)
norms = []
for i in range(0, 33, 8):
    with tf.GradientTape() as tape:
        loss = keras.losses.MeanSquaredError()(y[i : i + 8], model(x[i : i + 8], training=True))
    grads, norm = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.1)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    norms.append(float(norm))
results.save(weights + model.get_weights(), norms=norms)
