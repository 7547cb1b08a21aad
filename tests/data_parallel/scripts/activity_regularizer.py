"""A sparse autoencoder: the activities of a layer are regularized."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(33)
x = np.random.rand(40, 8)
code = keras.layers.Dense(4, "relu", activity_regularizer=keras.regularizers.l1(1e-2))
model = keras.Sequential([keras.Input((8,)), code, keras.layers.Dense(8)])
model.compile("adam", "mse")
history = model.fit(x, x, batch_size=10, epochs=2, verbose=0)
results.save(model.get_weights(), **history.history)
