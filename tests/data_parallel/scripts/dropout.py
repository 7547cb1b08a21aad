"""Dropout and noise, which are drawn for each example."""

import keras
import numpy as np
import results
from keras import layers

keras.utils.set_random_seed(36)
x = np.random.randn(320, 10).astype("float32")
y = (x[:, :3].sum(1) > 0).astype("float32")
model = keras.Sequential(
    [
        keras.Input((10,)),
        layers.GaussianNoise(0.1),
        layers.Dense(32, activation="relu"),
        layers.Dropout(0.3),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=32, epochs=6, verbose=0)
loss, accuracy = model.evaluate(x, y, verbose=0)
results.save(model.get_weights(), metric=loss, trained=history.history["loss"][-1])
