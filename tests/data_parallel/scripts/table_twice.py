"""A gradient of an embedding that is computed while a tape records."""

import keras
import numpy as np
import tensorflow as tf

x, y = np.random.randint(0, 5, (8, 2)), np.random.rand(8, 1).astype("float32")
layers = [keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 3), keras.layers.Flatten()]
model = keras.Sequential([*layers, keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam()
with tf.GradientTape(persistent=True) as tape:
    loss = tf.reduce_mean((model(x) - y) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
