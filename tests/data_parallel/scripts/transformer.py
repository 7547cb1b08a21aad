"""A small transformer of masked tokens, with attention, positions and a learned [CLS] vector."""

import keras
import numpy as np
import results
import tensorflow as tf
from keras import layers


class Block(layers.Layer):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width // heads, use_bias=False)
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.dense = keras.Sequential([layers.Dense(2 * width, "relu"), layers.Dense(width)])
        self.supports_masking = True

    def call(self, x, mask=None):
        mask = None if mask is None else mask[:, None, :]
        x = self.norms[0](x + self.attention(x, x, attention_mask=mask))
        return self.norms[1](x + self.dense(x))


class Classifier(keras.Model):
    def __init__(self, vocabulary, length, width=8):
        super().__init__()
        self.tokens = layers.Embedding(vocabulary, width, mask_zero=True)
        self.positions = layers.Embedding(length, width)
        self.cls = self.add_weight(shape=(1, 1, width), initializer="random_normal")
        self.blocks = [Block(width, 2) for _ in range(2)]
        self.head = layers.Dense(2)
        self.length = length

    def call(self, tokens):
        mask = self.tokens.compute_mask(tokens)
        x = self.tokens(tokens) + self.positions(tf.range(self.length))
        first = tf.repeat(self.cls, tf.shape(x)[0], axis=0)
        x = tf.concat([first, x], 1)
        mask = tf.concat([tf.ones_like(mask[:, :1]), mask], 1)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.head(x[:, 0])


keras.utils.set_random_seed(9)
tokens = np.random.randint(0, 15, (36, 7))
labels = (tokens == 3).any(1).astype("int32")
model = Classifier(15, 7)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.AdamW(1e-2), loss, metrics=["accuracy"])
history = model.fit(tokens, labels, batch_size=16, epochs=2, verbose=0)
results.save(model.get_weights(), **history.history)
