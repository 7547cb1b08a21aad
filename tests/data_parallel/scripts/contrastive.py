"""A contrastive loss over all pairs of examples in a batch."""

import keras
import numpy as np
import results
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(37)
x = np.random.rand(48, 8).astype("float32")
encoder = keras.Sequential([keras.Input((8,)), layers.Dense(8, "relu"), layers.Dense(4)])
optimizer = keras.optimizers.Adam(0.01)


@tf.function
def step(first, second):
    with tf.GradientTape() as tape:
        a = tf.math.l2_normalize(encoder(first, training=True), axis=1)
        b = tf.math.l2_normalize(encoder(second, training=True), axis=1)
        similarities = tf.matmul(a, b, transpose_b=True) / 0.1
        labels = tf.range(tf.shape(a)[0])
        loss = keras.losses.sparse_categorical_crossentropy(labels, similarities, from_logits=True)
        loss += keras.losses.sparse_categorical_crossentropy(
            labels, tf.transpose(similarities), from_logits=True
        )
        loss = tf.reduce_mean(loss)
    grads = tape.gradient(loss, encoder.trainable_weights)
    optimizer.apply_gradients(zip(grads, encoder.trainable_weights, strict=True))
    return loss


losses = []
for _ in range(2):
    for i in range(0, 48, 13):
        batch = x[i : i + 13]
        views = [batch + 0.05 * np.random.randn(*batch.shape).astype("float32") for _ in range(2)]
        losses.append(float(step(*views)))
results.save(encoder.get_weights(), losses=losses)
