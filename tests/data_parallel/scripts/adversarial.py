"""Train on examples that are moved along the gradient of their loss."""

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(67)
x = np.random.rand(40, 6).astype("float32")
y = np.random.randint(0, 3, 40)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.Adam(0.01)
losses = []
for i in range(0, 40, 9):
    batch, labels = tf.constant(x[i : i + 9]), y[i : i + 9]
    with tf.GradientTape() as tape:
        tape.watch(batch)
        loss = loss_fn(labels, model(batch))
    moved = batch + 0.1 * tf.sign(tape.gradient(loss, batch))
    with tf.GradientTape() as tape:
        loss = loss_fn(labels, model(moved, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    losses.append(float(loss))
results.save(model.get_weights(), losses=losses)
