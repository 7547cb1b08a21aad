"""A table of which each row is looked up once for a batch, in fit and in a loop."""

import keras
import numpy as np
import results
import tensorflow as tf


class Table(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(9, 4), name="table")

    def call(self, ids):
        rows, places = tf.unique(tf.reshape(ids, [-1]))
        found = tf.gather(tf.gather(tf.convert_to_tensor(self.table), rows), places)
        return tf.reduce_mean(tf.reshape(found, [-1, 3, 4]), 1)


keras.utils.set_random_seed(82)
x, y = np.random.randint(0, 9, (24, 3)), np.random.rand(24, 1).astype("float32")
layers = [keras.Input((3,), dtype="int32"), Table(), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile(keras.optimizers.Adam(0.05), "mse")
history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
for i in range(0, 24, 8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x[i : i + 8]) - y[i : i + 8]) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
results.save(model.get_weights(), loss=history.history["loss"], last=float(loss))
