"""Records of several files, read by several threads, in any order."""

import os
import tempfile

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(82)
folder = os.environ.get("FOLDER") or tempfile.mkdtemp()
folder = tempfile.mkdtemp(dir=folder)
for i in range(4):
    with tf.io.TFRecordWriter(f"{folder}/{i}.tfrecord") as writer:
        for _ in range(12):
            value = tf.io.serialize_tensor(np.random.rand(5).astype("float32"))
            writer.write(value.numpy())


def parse(record):
    values = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), (5,))
    return values[:4], values[4:]


files = tf.data.Dataset.list_files(f"{folder}/*.tfrecord")
data = files.interleave(
    tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=4, deterministic=False
)
data = data.map(parse, num_parallel_calls=4).shuffle(20).batch(10)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(data, epochs=3, verbose=0)
results.save(model.get_weights(), **history.history)
