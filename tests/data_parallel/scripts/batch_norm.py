"""A convolutional network with batch normalization."""

import keras
import numpy as np
import results
from keras import layers

keras.utils.set_random_seed(35)
y = np.random.randint(0, 2, 320)
x = (np.random.rand(320, 8, 8, 1) + 0.3 * y[:, None, None, None]).astype("float32")
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(4, 3, use_bias=False),
        layers.BatchNormalization(momentum=0.8),
        layers.ReLU(),
        layers.GlobalAveragePooling2D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, batch_size=40, epochs=5, verbose=0)
loss, accuracy = model.evaluate(x, y, verbose=0)
results.save(model.get_weights(), metric=loss, trained=history.history["loss"][-1])
