"""A Python generator, and a PyDataset with workers."""

import math

import keras
import numpy as np
import results

keras.utils.set_random_seed(5)
rng = np.random.default_rng(5)
images = rng.random((37, 8, 8, 1)).astype("float32")
labels = rng.integers(0, 3, 37)


def batches(size):
    while True:
        for i in range(0, len(images), size):
            yield images[i : i + size], labels[i : i + size]


class Images(keras.utils.PyDataset):
    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.size = size

    def __len__(self):
        return math.ceil(len(images) / self.size)

    def __getitem__(self, i):
        part = slice(i * self.size, (i + 1) * self.size)
        return images[part], labels[part]


model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss)
first = model.fit(batches(10), steps_per_epoch=4, epochs=2, verbose=0)
second = model.fit(Images(8, workers=2), epochs=2, shuffle=False, verbose=0)
results.save(model.get_weights(), first=first.history["loss"], second=second.history["loss"])
