"""A tf.Module with variables of its own."""

import results
import tensorflow as tf

tf.random.set_seed(62)


class Dense(tf.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.w = tf.Variable(tf.random.normal([inputs, outputs]), name="w")
        self.b = tf.Variable(tf.zeros([outputs]), name="b")

    def __call__(self, x):
        return tf.nn.relu(x @ self.w + self.b)


layer = Dense(3, 2)
x = tf.random.normal((20, 3))
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((layer(x) - 1.0) ** 2)
    grads = tape.gradient(loss, layer.trainable_variables)
    for variable, grad in zip(layer.trainable_variables, grads, strict=True):
        variable.assign_sub(0.1 * grad)
results.save([v.numpy() for v in layer.trainable_variables], loss=float(loss))
