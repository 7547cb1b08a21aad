"""A loop that saves and restores by tf.train.Checkpoint."""

import os
import tempfile

import keras
import numpy as np
import results
import tensorflow as tf

keras.utils.set_random_seed(44)
folder = os.environ.get("FOLDER") or tempfile.mkdtemp()
x = np.arange(10.0)[:, None].astype("float32")
y = x * 5.0 + np.arange(5.0, dtype="float32")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat(10).batch(3)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(5)])
optimizer = keras.optimizers.Adam(0.1)
checkpoint = tf.train.Checkpoint(step=tf.Variable(1), optimizer=optimizer, net=model)
manager = tf.train.CheckpointManager(checkpoint, folder + "/checkpoints", max_to_keep=2)


def train(steps):
    checkpoint.restore(manager.latest_checkpoint)
    print("from", manager.latest_checkpoint or "the beginning")
    for batch, target in dataset.take(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(model(batch) - target))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        checkpoint.step.assign_add(1)
        if int(checkpoint.step) % 5 == 0:
            print("saved", manager.save())
    return float(loss)


losses = [train(12), train(7)]
results.save(model.get_weights(), losses=losses, step=int(checkpoint.step))
