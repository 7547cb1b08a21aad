"""Keras `fit` on several ranks, which average their gradients after each batch.

rdma-transport run --horovod -n 2 -- python examples/horovod/keras_fit.py
"""

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
import tensorflow as tf

FEATURES, CLASSES = 64, 10
EXAMPLES, BATCH = 512, 64  # of all ranks together

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

# Points around one centre for each class; each rank takes its share of them.
random = np.random.default_rng(1)
labels = random.integers(0, CLASSES, EXAMPLES)
points = random.normal(size=(CLASSES, FEATURES))[labels] + random.normal(size=(EXAMPLES, FEATURES))
share = slice(hvd.rank(), None, hvd.size())
dataset = tf.data.Dataset.from_tensor_slices((points[share].astype("float32"), labels[share]))

keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential(
    [
        keras.Input([FEATURES]),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(CLASSES),
    ]
)
model.compile(
    optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    dataset.batch(BATCH // hvd.size()),
    epochs=3,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # all begin as rank 0 does
        hvd.callbacks.MetricAverageCallback(),
    ],
    verbose=2 if hvd.rank() == 0 else 0,
)
if hvd.rank() == 0:
    losses = history.history["loss"]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
