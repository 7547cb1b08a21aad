"""fit with XLA, and several steps for each call."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(90)
x = np.random.rand(36, 4).astype("float32")
y = x.mean(1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse", jit_compile=True, steps_per_execution=3)
losses = model.fit(x, y, batch_size=10, epochs=3, verbose=0).history["loss"]
predicted = model.predict(x, batch_size=7, verbose=0)
results.save(model.get_weights(), losses=losses, predicted=predicted)
