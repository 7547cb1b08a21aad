"""Tag words of padded sentences: the mask goes through recurrent layers to the loss."""

import keras
import numpy as np
import results
from keras import layers

keras.utils.set_random_seed(8)
rng = np.random.default_rng(8)
lengths = rng.integers(2, 10, 30)
words = np.zeros((30, 10), "int32")
for row, length in zip(words, lengths, strict=True):
    row[:length] = rng.integers(1, 25, length)
tags = words % 3

inputs = keras.Input((10,), dtype="int32")
x = layers.Embedding(25, 8, mask_zero=True)(inputs)
x = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(x)
x = layers.GRU(6, return_sequences=True)(x)
outputs = layers.Dense(3, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(words, tags, batch_size=8, epochs=2, verbose=0)
results.save(model.get_weights(), **history.history, test=model.evaluate(words, tags, verbose=0))
