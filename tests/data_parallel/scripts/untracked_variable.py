"""A variable that a model uses but does not track."""

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(65)
scale = tf.Variable([1.0, 2.0, 3.0])


class Scaled(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x * scale)


model, optimizer = Scaled(), keras.optimizers.SGD(0.1)
x = np.random.rand(24, 3).astype("float32")
for i in (0, 10, 20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x[i : i + 10]) - 1.0) ** 2)
    variables = [*model.trainable_variables, scale]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
results.save([v.numpy() for v in variables], loss=float(loss))
