"""Gradients of several batches before each update: Keras's own, and by hand."""

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(12)
x = np.random.rand(64, 5).astype("float32")
y = np.sin(x.sum(1, keepdims=True))
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01, gradient_accumulation_steps=3), "mse")
history = model.fit(x, y, batch_size=10, epochs=3, verbose=0)

optimizer = keras.optimizers.SGD(0.1)
variables = model.trainable_variables
accumulated = [tf.Variable(tf.zeros_like(v), trainable=False) for v in variables]


@tf.function
def step(x, y, apply):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2) / 2
    for total, gradient in zip(accumulated, tape.gradient(loss, variables), strict=True):
        total.assign_add(gradient)
    if apply:
        optimizer.apply_gradients(zip([a.value() for a in accumulated], variables, strict=True))
        for total in accumulated:
            total.assign(tf.zeros_like(total))
    return loss


losses = []
for i in range(6):
    part = slice(10 * i, 10 * i + 10)
    losses.append(step(x[part], y[part], tf.constant(i % 2 == 1)))
results.save(model.get_weights(), loss=history.history["loss"], losses=np.array(losses))
