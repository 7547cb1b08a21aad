"""The usual callbacks, and what they leave behind."""

import csv
import os
import tempfile
from pathlib import Path

import keras
import numpy as np
import results

keras.utils.set_random_seed(14)
folder = Path(os.environ.get("FOLDER") or tempfile.mkdtemp())
x = np.random.rand(80, 3)
y = (x**2).sum(1)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.5), "mse", metrics=["mae"])
rates = []
callbacks = [
    keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True, verbose=1),
    keras.callbacks.ModelCheckpoint(folder / "{epoch:02d}.weights.h5", save_weights_only=True),
    keras.callbacks.EarlyStopping(patience=4, restore_best_weights=True, min_delta=1e-3),
    keras.callbacks.ReduceLROnPlateau(factor=0.3, patience=1, verbose=1),
    keras.callbacks.CSVLogger(folder / "log.csv"),
    keras.callbacks.TerminateOnNaN(),
    keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rates.append(float(model.optimizer.learning_rate))
    ),
]
history = model.fit(
    x, y, batch_size=16, epochs=12, validation_split=0.25, callbacks=callbacks, verbose=0
)
best = keras.models.load_model(folder / "best.keras")
rows = list(csv.reader((folder / "log.csv").open()))
assert len(rows) == len(history.history["loss"]) + 1, rows
results.save(
    model.get_weights() + best.get_weights(),
    **history.history,
    rates=rates,
    files=len(list(folder.glob("*.weights.h5"))),
)
