"""Batches that do not divide by two or three, and a last batch of one example."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(47)
x = np.random.rand(22, 4).astype("float32")
y = (x.sum(1) > 2).astype("int32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(7, "elu"), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])
history = model.fit(x, y, batch_size=7, epochs=4, verbose=0, validation_data=(x[:5], y[:5]))
results.save(model.get_weights(), **history.history, predicted=model.predict(x[:1], verbose=0))
