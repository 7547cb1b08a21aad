"""tf-keras: masks, embeddings and recurrent layers; sequences are ragged before."""

import numpy as np
import results
import tf_keras as keras

keras.utils.set_random_seed(53)
texts = [list(np.random.randint(1, 30, np.random.randint(1, 9))) for _ in range(34)]
x = keras.preprocessing.sequence.pad_sequences(texts, maxlen=8, padding="post")
y = x % 4
model = keras.Sequential(
    [
        keras.layers.Embedding(30, 6, mask_zero=True),
        keras.layers.LSTM(5, return_sequences=True),
        keras.layers.TimeDistributed(keras.layers.Dense(4, activation="softmax")),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=9, epochs=2, verbose=0)
results.save(model.get_weights(), **history.history)
