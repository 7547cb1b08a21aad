"""Outputs of several kinds: lists in dictionaries, and states of a recurrent layer."""

import keras
import numpy as np
import results
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(96)


class Encoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = layers.Embedding(15, 4, mask_zero=True)
        self.rnn = layers.GRU(5, return_sequences=True, return_state=True)

    def call(self, words):
        sequence, state = self.rnn(self.embed(words))
        return {"all": [sequence, state], "mask": words > 0}


class Decoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.attention = layers.Attention()
        self.rnn = layers.GRU(5, return_sequences=True)
        self.out = layers.Dense(15)

    def call(self, inputs, state=None, memory=None, mask=None):
        x = self.rnn(tf.one_hot(inputs, 15), initial_state=state)
        return self.out(x + self.attention([x, memory], mask=[None, mask]))


encoder, decoder, optimizer = Encoder(), Decoder(), keras.optimizers.Adam(0.01)
words = np.random.randint(0, 15, (25, 6)).astype("int32")
words[:, 0] = 1


@tf.function
def step(source, target):
    with tf.GradientTape() as tape:
        out = encoder(source, training=True)
        sequence, state = out["all"]
        logits = decoder(target[:, :-1], state=state, memory=sequence, mask=out["mask"])
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(target[:, 1:], logits)
        weight = tf.cast(target[:, 1:] > 0, tf.float32)
        loss = tf.reduce_sum(loss * weight) / tf.reduce_sum(weight)
    variables = encoder.trainable_variables + decoder.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


losses = [float(step(words[i : i + 9], words[i : i + 9, ::-1])) for i in (0, 9, 18)]
results.save(encoder.get_weights() + decoder.get_weights(), losses=losses)
