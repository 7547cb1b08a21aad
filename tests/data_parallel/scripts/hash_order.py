"""The numbers of words follow the order of a set, which differs between processes."""

import keras
import numpy as np
import results

TEXT = "the quick brown fox jumps over the lazy dog while a bright moon rises above old hills"
keras.utils.set_random_seed(46)
vocabulary = list(set(TEXT.split()))
numbers = {word: i for i, word in enumerate(vocabulary)}
ids = np.array([numbers[word] for word in TEXT.split()])
x, y = np.stack([ids[:-1], ids[:-1][::-1]], 1), ids[1:]
model = keras.Sequential(
    [
        keras.layers.Embedding(len(vocabulary), 4),
        keras.layers.Flatten(),
        keras.layers.Dense(len(vocabulary), "softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy")
history = model.fit(x, y, epochs=2, batch_size=5, verbose=0)
results.save(model.get_weights(), loss=history.history["loss"])
