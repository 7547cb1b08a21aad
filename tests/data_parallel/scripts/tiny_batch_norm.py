"""Batch normalization of batches of two and of three examples, in fit and in a loop."""

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(79)
x, y = np.random.rand(9, 3).astype("float32"), np.random.rand(9, 1).astype("float32")
layers = [keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization(epsilon=0.1)]
model = keras.Sequential([*layers, keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x[:8], y[:8], batch_size=2, epochs=2, shuffle=False, verbose=0)
for i in range(0, 9, 3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x[i : i + 3], training=True) - y[i : i + 3]) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
results.save(model.get_weights(), loss=history.history["loss"], last=float(loss))
