"""One model is called twice for one loss, and its weights are used outside of calls, too."""

import keras
import numpy as np
import results
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(64)
a, b = np.random.rand(30, 5).astype("float32"), np.random.rand(30, 5).astype("float32")
same = (np.random.rand(30) > 0.5).astype("float32")
tower = keras.Sequential([keras.Input((5,)), layers.Dense(6, "relu"), layers.Dense(3)])
temperature = tf.Variable(1.0)
optimizer = keras.optimizers.Adam(0.01)
variables = [*tower.trainable_variables, temperature]


@tf.function
def step(a, b, same):
    with tf.GradientTape() as tape:
        distance = tf.reduce_sum((tower(a) - tower(b)) ** 2, 1)
        logits = temperature * (1.0 - distance)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(same, logits))
        loss += 0.01 * tf.reduce_sum(tf.abs(tower.layers[0].kernel))
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


losses = [float(step(a[i : i + 11], b[i : i + 11], same[i : i + 11])) for i in (0, 11, 22, 0)]
results.save([v.numpy() for v in variables], losses=losses)
