"""A loop with a tape, without tf.function."""

import numpy as np
import results
import tensorflow as tf
from tensorflow import keras

tf.random.set_seed(20)
np.random.seed(20)
keras.utils.set_random_seed(20)
x = np.random.rand(64, 8).astype(np.float32)
y = np.random.randint(0, 3, 64)
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=0).batch(20)
model = keras.Sequential([keras.layers.Dense(10, activation="relu"), keras.layers.Dense(3)])
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.SGD(learning_rate=0.1, nesterov=True, momentum=0.9)
accuracy = keras.metrics.SparseCategoricalAccuracy()
losses = []
for epoch in range(3):
    for step, (images, labels) in enumerate(train):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss_value = loss_fn(labels, logits)
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply_gradients(zip(grads, model.trainable_weights, strict=True))
        accuracy.update_state(labels, logits)
        if step % 2 == 0:
            print(f"step {step}: loss {float(loss_value):.4f}")
        losses.append(float(loss_value))
    print(f"epoch {epoch}: accuracy {float(accuracy.result()):.4f}")
results.save(model.get_weights(), losses=losses, accuracy=float(accuracy.result()))
