"""Layers of Keras that are called one after the other, without a model."""

import keras
import results
import tensorflow as tf

keras.utils.set_random_seed(61)
x = tf.random.normal((32, 4), seed=1)
first, second = keras.layers.Dense(6, "relu"), keras.layers.Dense(1)
optimizer = keras.optimizers.SGD(0.1)
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((second(first(x)) - 1.0) ** 2)
    variables = first.trainable_variables + second.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
results.save([v.numpy() for v in variables], loss=float(loss))
