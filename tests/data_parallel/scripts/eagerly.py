"""Without graphs: for a model, for all functions, and in a step of one's own."""

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(89)
x = np.random.rand(36, 4).astype("float32")
y = x.mean(1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse", run_eagerly=True)
losses = model.fit(x, y, batch_size=16, epochs=2, verbose=0).history["loss"]
model.run_eagerly = False
losses += model.fit(x, y, batch_size=16, epochs=1, verbose=0).history["loss"]
tf.config.run_functions_eagerly(True)
optimizer = keras.optimizers.SGD(0.1)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    return loss


losses += [float(step(x[i : i + 16], y[i : i + 16])) for i in (0, 16, 32)]
results.save(model.get_weights(), losses=losses)
