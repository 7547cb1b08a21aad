"""Keras `fit` on several workers, which average their gradients after each batch.

Every worker runs this script, with its own TF_CONFIG.
"""

import argparse

import numpy as np
import tensorflow as tf
import tf_keras as keras

FEATURES, CLASSES = 64, 10
EXAMPLES, BATCH = 512, 64


def dataset() -> tf.data.Dataset:
    """Points around one centre for each class; the strategy gives each worker its share."""
    random = np.random.default_rng(1)
    centres = random.normal(size=(CLASSES, FEATURES))
    labels = random.integers(0, CLASSES, EXAMPLES)
    points = centres[labels] + random.normal(size=(EXAMPLES, FEATURES))
    made = tf.data.Dataset.from_tensor_slices((points.astype("float32"), labels)).batch(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return made.with_options(options)


def model() -> keras.Model:
    made = keras.Sequential(
        [
            keras.Input([FEATURES]),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(CLASSES),
        ]
    )
    made.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return made


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--epochs", type=int, default=3)
    epochs = arguments.parse_args().epochs

    keras.utils.set_random_seed(7)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        trained = model()
    history = trained.fit(dataset(), epochs=epochs, verbose=2).history
    print("losses " + " ".join(f"{loss:.9g}" for loss in history["loss"]))


if __name__ == "__main__":
    main()
