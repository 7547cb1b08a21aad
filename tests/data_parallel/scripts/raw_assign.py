"""As with variables alone, but assigned as a whole."""

import results
import tensorflow as tf

x = tf.linspace(-1.0, 1.0, 40)
w = tf.Variable(0.0)


@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((w * x - 2.0 * x) ** 2)
    w.assign(w - 0.5 * tape.gradient(loss, w))
    return loss


losses = [float(step()) for _ in range(4)]
results.save([w.numpy()], losses=losses)
