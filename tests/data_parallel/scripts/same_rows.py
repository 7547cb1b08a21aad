"""An embedding of which all ranks look up the same rows, for examples of their own."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(80)
x = np.array([[3], [3], [5], [5], [1], [2], [3], [4], [3], [4]])
y = np.random.rand(10, 1).astype("float32")
layers = [keras.Input((1,), dtype="int32"), keras.layers.Embedding(8, 3), keras.layers.Flatten()]
model = keras.Sequential([*layers, keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.05), "mse")
model.fit(x[:6], y[:6], batch_size=2, epochs=2, shuffle=False, verbose=0)
history = model.fit(x[6:], y[6:], batch_size=4, epochs=2, verbose=0)
results.save(model.get_weights(), loss=history.history["loss"])
