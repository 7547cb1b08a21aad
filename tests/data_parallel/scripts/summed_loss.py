"""Losses that are summed over the batch, in a loop and in fit."""

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(23)
x = np.random.rand(30, 4).astype("float32")
y = (x @ np.ones((4, 1))).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.003)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(x) - y))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    return loss


losses = [float(step(x[i : i + 11], y[i : i + 11])) for _ in range(3) for i in range(0, 30, 11)]
model.compile(keras.optimizers.SGD(0.003), keras.losses.MeanSquaredError(reduction="sum"))
history = model.fit(x, y, batch_size=11, epochs=2, verbose=0)
results.save(model.get_weights(), losses=losses, loss=history.history["loss"])
