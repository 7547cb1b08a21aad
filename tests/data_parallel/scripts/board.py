"""Logs for TensorBoard, by the callback and by tf.summary."""

import os
import tempfile

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(15)
folder = os.environ.get("FOLDER") or tempfile.mkdtemp()
x, y = np.random.rand(32, 4), np.random.rand(32, 1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
board = keras.callbacks.TensorBoard(folder, histogram_freq=1, update_freq=1)
history = model.fit(x, y, epochs=2, batch_size=8, callbacks=[board], verbose=0)
writer = tf.summary.create_file_writer(folder + "/more")
with writer.as_default():
    tf.summary.scalar("loss", history.history["loss"][-1], step=1)
results.save(model.get_weights(), **history.history)
