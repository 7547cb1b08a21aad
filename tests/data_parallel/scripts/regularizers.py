"""Weights that are regularized, in fit and in a loop."""

import keras
import numpy as np
import results
import tensorflow as tf
from keras import regularizers

keras.utils.set_random_seed(32)
x, y = np.random.rand(36, 5).astype("float32"), np.random.rand(36, 1).astype("float32")


def make():
    both = regularizers.L1L2(1e-2, 1e-2)
    hidden = keras.layers.Dense(6, "relu", kernel_regularizer=both, bias_regularizer="l2")
    last = keras.layers.Dense(1, kernel_regularizer=regularizers.l2(0.1))
    return keras.Sequential([keras.Input((5,)), hidden, last])


fitted = make()
fitted.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mse"])
history = fitted.fit(x, y, batch_size=10, epochs=3, verbose=0)
model, optimizer = make(), keras.optimizers.SGD(0.1)
losses = []
for i in range(0, 36, 10):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x[i : i + 10], training=True) - y[i : i + 10]) ** 2)
        loss += tf.add_n(model.losses)
        loss += 1e-2 * tf.add_n([tf.nn.l2_loss(v) for v in model.trainable_variables])
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    losses.append(float(loss))
results.save(fitted.get_weights() + model.get_weights(), **history.history, losses=losses)
