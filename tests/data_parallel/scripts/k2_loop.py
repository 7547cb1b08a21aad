"""tf-keras by TF_USE_LEGACY_KERAS: a loop in a tf.function with two models."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import results
import tensorflow as tf

tf.keras.utils.set_random_seed(50)
x = np.random.rand(50, 6).astype("float32")
encoder = tf.keras.Sequential([tf.keras.layers.Dense(3, "tanh")])
decoder = tf.keras.Sequential([tf.keras.layers.Dense(6)])
optimizer = tf.keras.optimizers.Adam(0.01)
legacy = tf.keras.optimizers.legacy.SGD(0.05, momentum=0.5)


@tf.function
def step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((decoder(encoder(batch, training=True)) - batch) ** 2)
    variables = encoder.trainable_variables + decoder.trainable_variables
    grads, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 5.0)
    optimizer.apply_gradients(zip(grads, variables))  # noqa: B905
    return loss


losses = [float(step(x[i : i + 12])) for _ in range(2) for i in range(0, 50, 12)]
for i in range(0, 50, 12):
    legacy.minimize(
        lambda i=i: tf.reduce_mean(tf.abs(decoder(encoder(x[i : i + 12])) - x[i : i + 12])),
        lambda: encoder.trainable_variables + decoder.trainable_variables,
    )
results.save(encoder.get_weights() + decoder.get_weights(), losses=losses)
