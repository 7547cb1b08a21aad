"""Factorize ratings: gradients of embeddings are sparse, and users occur several times."""

import keras
import numpy as np
import results
import tensorflow as tf


class Factors(keras.Model):
    def __init__(self, users, items):
        super().__init__()
        self.user = keras.layers.Embedding(users, 4)
        self.item = keras.layers.Embedding(items, 4)

    def call(self, pair):
        user, item = pair["user"], pair["item"]
        return tf.reduce_sum(self.user(user) * self.item(item), -1)


keras.utils.set_random_seed(10)
pairs = {"user": np.random.randint(0, 12, 64), "item": np.random.randint(0, 30, 64)}
ratings = np.random.randint(1, 6, 64).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((pairs, ratings)).batch(24)
model = Factors(12, 30)
optimizer = keras.optimizers.Adam(0.05)
losses = []
for _ in range(3):
    for pair, rating in dataset:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(rating - model(pair, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        assert isinstance(gradients[0], tf.IndexedSlices) or gradients[0].shape == (12, 4)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(float(loss))
results.save(model.get_weights(), losses=losses)
