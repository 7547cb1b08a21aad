"""tf-keras: callbacks, checkpoints, saving and loading."""

import os
import tempfile
from pathlib import Path

import numpy as np
import results
import tf_keras as keras

keras.utils.set_random_seed(52)
folder = Path(os.environ.get("FOLDER") or tempfile.mkdtemp())
x = np.random.rand(60, 3)
y = x.sum(1)
model = keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.2), "mse", metrics=["mae"])
callbacks = [
    keras.callbacks.ModelCheckpoint(str(folder / "best.h5"), save_best_only=True),
    keras.callbacks.ModelCheckpoint(str(folder / "{epoch}"), save_weights_only=True),
    keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
    keras.callbacks.ReduceLROnPlateau(patience=1),
    keras.callbacks.CSVLogger(str(folder / "log.csv")),
    keras.callbacks.BackupAndRestore(str(folder / "backup")),
]
history = model.fit(
    x, y, epochs=8, batch_size=16, validation_split=0.3, callbacks=callbacks, verbose=0
)
model.save(folder / "model.keras")
best = keras.models.load_model(folder / "best.h5")
same = keras.models.load_model(folder / "model.keras")
more = same.fit(x, y, epochs=1, verbose=0)
results.save(
    model.get_weights() + best.get_weights() + same.get_weights(),
    **history.history,
    more=more.history["loss"],
)
