"""tf-keras with ragged input."""

import numpy as np
import results
import tensorflow as tf
import tf_keras as keras

keras.utils.set_random_seed(75)
rows = [list(np.random.randint(1, 20, np.random.randint(1, 7))) for _ in range(30)]
x = tf.ragged.constant(rows, dtype=tf.int32)
y = np.array([float(len(row) > 3) for row in rows])[:, None]
model = keras.Sequential(
    [
        keras.Input((None,), dtype=tf.int32, ragged=True),
        keras.layers.Embedding(20, 4),
        keras.layers.LSTM(4),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy")
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=2, verbose=0)
results.save(model.get_weights(), **history.history)
