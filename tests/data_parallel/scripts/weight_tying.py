"""A decoder that shares the weights of the encoder's embedding."""

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(66)
embedding = keras.layers.Embedding(12, 5)
inputs = keras.Input((4,), dtype="int32")
hidden = keras.layers.GlobalAveragePooling1D()(embedding(inputs))
encoder = keras.Model(inputs, keras.layers.Dense(5, "tanh")(hidden))
optimizer = keras.optimizers.Adam(0.02)
words = np.random.randint(0, 12, (33, 5))
for i in (0, 11, 22):
    with tf.GradientTape() as tape:
        state = encoder(words[i : i + 11, :4], training=True)
        logits = tf.matmul(state, embedding.embeddings, transpose_b=True)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(words[i : i + 11, 4], logits)
    grads = tape.gradient(loss, encoder.trainable_variables)
    optimizer.apply_gradients(zip(grads, encoder.trainable_variables, strict=True))
results.save(encoder.get_weights(), loss=loss)
