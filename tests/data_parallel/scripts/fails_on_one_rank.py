"""Makes a folder, which only the first process that tries can do."""

import os
import tempfile
from pathlib import Path

import keras
import numpy as np
import results

keras.utils.set_random_seed(85)
folder = Path(os.environ.get("FOLDER") or tempfile.mkdtemp())
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 3)), np.ones(8), verbose=0)
os.mkdir(folder / "output")
history = model.fit(np.ones((8, 3)), np.ones(8), epochs=2, verbose=0)
results.save(model.get_weights(), **history.history)
