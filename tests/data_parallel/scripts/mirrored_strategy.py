"""A strategy for the devices of one host."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import results
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
print("devices:", strategy.num_replicas_in_sync)
tf.keras.utils.set_random_seed(76)
x, y = np.random.rand(40, 3).astype("float32"), np.random.rand(40, 1).astype("float32")
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
history = model.fit(data, epochs=2, verbose=0)
results.save(model.get_weights(), **history.history)
