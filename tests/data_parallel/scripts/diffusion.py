"""A denoiser that is given noisy examples, times and a scalar, and returns two things."""

import keras
import numpy as np
import results
import tensorflow as tf


class Denoiser(keras.Model):
    def __init__(self):
        super().__init__()
        self.time = keras.layers.Embedding(10, 4)
        self.hidden = keras.layers.Dense(8, "silu")
        self.out = keras.layers.Dense(2)

    def call(self, x, times, scale=1.0, training=False):
        hidden = self.hidden(tf.concat([x, self.time(times)], -1))
        return {"noise": self.out(hidden) * scale, "hidden": hidden}


keras.utils.set_random_seed(72)
data = np.random.randn(50, 2).astype("float32")
model, optimizer = Denoiser(), keras.optimizers.Adam(0.01)


@tf.function
def step(x):
    times = tf.random.uniform((tf.shape(x)[0],), 0, 10, tf.int32)
    noise = tf.random.normal(tf.shape(x))
    with tf.GradientTape() as tape:
        out = model(x + noise, times, scale=tf.constant(0.5), training=True)
        loss = tf.reduce_mean((out["noise"] - noise) ** 2)
        loss += 1e-3 * tf.reduce_mean(out["hidden"] ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    return loss


losses = [float(step(data[i : i + 15])) for _ in range(2) for i in range(0, 50, 15)]
results.save(model.get_weights(), losses=losses)
