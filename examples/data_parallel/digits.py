"""Trains a convolutional network on handwritten digits with Keras, in one process.

usage: python digits.py [FILE FOR THE WEIGHTS]
"""

import sys
import time

import keras
from sklearn.datasets import load_digits

BATCH, EPOCHS, TEST = 128, 8, 360

keras.utils.set_random_seed(11)
digits = load_digits()
images, labels = digits.images[..., None].astype("float32") / 16, digits.target
model = keras.Sequential(
    [
        keras.layers.Conv2D(32, 3, padding="same", activation="tanh"),
        keras.layers.Conv2D(64, 3, padding="same", activation="tanh"),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="tanh"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(images[TEST:], labels[TEST:], batch_size=BATCH, verbose=0)
start = time.perf_counter()
model.fit(images[TEST:], labels[TEST:], batch_size=BATCH, epochs=EPOCHS, verbose=0)
seconds = time.perf_counter() - start
steps = EPOCHS * -(-len(images[TEST:]) // BATCH)
accuracy = model.evaluate(images[:TEST], labels[:TEST], verbose=0)[1]
print(f"accuracy {100 * accuracy:.1f} %, {steps / seconds:.1f} steps/s")
if len(sys.argv) > 1:
    model.save_weights(sys.argv[1])
