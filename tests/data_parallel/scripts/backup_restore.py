"""Interrupted after the second epoch, and continued from the backup."""

import os
import tempfile

import keras
import numpy as np
import results


class Interrupt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def make():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "relu")])
    model.add(keras.layers.Dense(1))
    model.compile("adam", "mse")
    return model


keras.utils.set_random_seed(16)
folder = os.environ.get("FOLDER") or tempfile.mkdtemp()
x, y = np.random.rand(40, 4), np.random.rand(40, 1)
backup = keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"))
model = make()
try:
    model.fit(x, y, epochs=4, shuffle=False, callbacks=[backup, Interrupt()], verbose=0)
except KeyboardInterrupt:
    print("interrupted")
keras.backend.clear_session()
model = make()
history = model.fit(x, y, epochs=4, shuffle=False, callbacks=[backup], verbose=0)
assert len(history.epoch) == 2, history.epoch
results.save(model.get_weights(), loss=history.history["loss"])
