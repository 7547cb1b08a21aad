"""Classes of which one is rare."""

import keras
import numpy as np
import results

keras.utils.set_random_seed(6)
x = np.random.randn(90, 4)
y = (x[:, 0] > 1).astype("float32")
negative, positive = np.sum(y == 0), np.sum(y == 1)
weights = {0: len(y) / (2.0 * negative), 1: len(y) / (2.0 * positive)}
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
metrics = [keras.metrics.Precision(), keras.metrics.Recall(), keras.metrics.TruePositives()]
model.compile("adagrad", "binary_crossentropy", metrics=metrics, weighted_metrics=["accuracy"])
history = model.fit(x, y[:, None], batch_size=20, epochs=3, class_weight=weights, verbose=0)
results.save(model.get_weights(), **history.history)
