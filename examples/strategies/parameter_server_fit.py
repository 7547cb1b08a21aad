"""Keras `fit` with a parameter server: the chief gives batches to the workers.

The chief, every worker and every server run this script, each with its own TF_CONFIG.
"""

import argparse

import tensorflow as tf
import tf_keras as keras

FEATURES, CLASSES, BATCH = 64, 10, 64


def dataset(_: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    """One batch of points around a centre for each class, again and again on every worker."""
    labels = tf.random.stateless_uniform([BATCH], [1, 2], 0, CLASSES, tf.int32)
    centres = tf.random.stateless_normal([CLASSES, FEATURES], [3, 4])
    points = tf.gather(centres, labels) + tf.random.stateless_normal([BATCH, FEATURES], [5, 6])
    return tf.data.Dataset.from_tensors((points, labels)).repeat()


def model() -> keras.Model:
    made = keras.Sequential(
        [
            keras.Input([FEATURES]),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )
    made.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return made


def serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Do what the chief says until somebody ends this process."""
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
    )
    server.join()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--epochs", type=int, default=12)
    arguments.add_argument("--steps", type=int, default=1, help="batches in an epoch")
    options = arguments.parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        serve(resolver)
        return
    keras.utils.set_random_seed(7)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        trained = model()
    history = trained.fit(
        keras.utils.experimental.DatasetCreator(dataset),
        epochs=options.epochs,
        steps_per_epoch=options.steps,
        verbose=2,
    ).history
    print("losses " + " ".join(f"{loss:.9g}" for loss in history["loss"]))


if __name__ == "__main__":
    main()
