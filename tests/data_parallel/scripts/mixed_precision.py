"""float16 with a loss scale, in fit and in a loop."""

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(11)
keras.mixed_precision.set_global_policy("mixed_float16")
x = np.random.rand(48, 6).astype("float32")
y = np.argmax(x[:, :3], 1)
model = keras.Sequential(
    [
        keras.Input((6,)),
        keras.layers.Dense(12, activation="relu"),
        keras.layers.Dense(3),
        keras.layers.Activation("softmax", dtype="float32"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
history = model.fit(x, y, batch_size=12, epochs=2, verbose=0)
fitted = [w.copy() for w in model.get_weights()]

optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1e38)
optimizer.build(model.trainable_variables)
for _ in range(4):  # The first steps overflow, and are skipped.
    with tf.GradientTape() as tape:
        p = model(x[:12], training=True)
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y[:12], p))
        scaled = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
results.save(
    fitted + model.get_weights(),
    loss=history.history["loss"],
    scale=np.asarray(optimizer.dynamic_scale),
)
