"""Moving averages of the weights, swapped in at the end."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(13)
x = np.linspace(-1, 1, 60)[:, None]
y = x**3
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=5)
model.compile(optimizer, "mse")
first = model.fit(x, y, batch_size=16, epochs=3, verbose=0)
model.compile(keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9), "mse")
swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
second = model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[swap])
model.optimizer.finalize_variable_values(model.trainable_variables)
results.save(model.get_weights(), a=first.history["loss"], b=second.history["loss"])
