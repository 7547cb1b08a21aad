"""A shared trunk, two heads, two losses, two optimizers and one persistent tape."""

import keras
import numpy as np
import results
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(31)
x = np.random.rand(45, 6).astype("float32")
a, b = x.sum(1, keepdims=True), (x[:, 0] > 0.5).astype("float32")[:, None]
trunk = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu")])
left = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
right = keras.Sequential([keras.Input((8,)), layers.Dense(1, "sigmoid")])
one, two = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1)


@tf.function
def step(x, a, b):
    with tf.GradientTape(persistent=True) as tape:
        shared = trunk(x, training=True)
        loss_a = tf.reduce_mean(keras.losses.mean_squared_error(a, left(shared)))
        loss_b = tf.reduce_mean(keras.losses.binary_crossentropy(b, right(shared)))
    variables = trunk.trainable_variables + left.trainable_variables
    one.apply_gradients(zip(tape.gradient(loss_a, variables), variables, strict=True))
    variables = trunk.trainable_variables + right.trainable_variables
    two.apply_gradients(zip(tape.gradient(loss_b, variables), variables, strict=True))
    return loss_a, loss_b


losses = []
for i in [0, 15, 30, 0, 15, 30]:
    losses.append(step(x[i : i + 15], a[i : i + 15], b[i : i + 15]))
results.save(
    trunk.get_weights() + left.get_weights() + right.get_weights(), losses=np.array(losses)
)
