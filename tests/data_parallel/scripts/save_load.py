"""Save and load in the middle: whole models, weights, and an exported model."""

import os
import tempfile

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(43)
folder = os.environ.get("FOLDER") or tempfile.mkdtemp()
x, y = np.random.rand(40, 4).astype("float32"), np.random.rand(40, 2).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(2)])
model.compile("adam", "mse")
losses = model.fit(x, y, epochs=2, batch_size=16, verbose=0).history["loss"]
model.save(folder + "/model.keras")
model.save_weights(folder + "/model.weights.h5")
restored = keras.saving.load_model(folder + "/model.keras")
losses += restored.fit(x, y, epochs=2, batch_size=16, verbose=0).history["loss"]
restored.save(folder + "/old.h5")
older = keras.saving.load_model(folder + "/old.h5", compile=False)
model.load_weights(folder + "/model.weights.h5")
losses += model.fit(x, y, epochs=1, batch_size=16, verbose=0).history["loss"]
model.export(folder + "/exported", verbose=False)
exported = tf.saved_model.load(folder + "/exported")
copy = keras.models.clone_model(model)
results.save(
    model.get_weights() + restored.get_weights() + older.get_weights(),
    losses=losses,
    served=exported.serve(tf.constant(x[:3])),
    predicted=model.predict(x[:3], verbose=0),
    cloned=len(copy.get_weights()),
)
