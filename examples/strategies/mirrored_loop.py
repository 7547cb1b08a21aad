"""A training loop of one's own on several workers, which sum their gradients in each step.

Every worker runs this script, with its own TF_CONFIG.
"""

import argparse

import keras
import tensorflow as tf

FEATURES, HIDDEN = 64, 128
BATCH = 32  # of all workers together


def shard(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """This worker's batches of points, and the norm of each, which is to be learnt."""
    batch = context.get_per_replica_batch_size(BATCH)

    def points(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = tf.random.stateless_normal([batch, FEATURES], tf.stack([index, 3]))
        return x, tf.norm(x, axis=1, keepdims=True)

    numbers = tf.data.Dataset.range(100_000)
    return numbers.shard(context.num_input_pipelines, context.input_pipeline_id).map(points)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=20)
    steps = arguments.parse_args().steps

    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
    )
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([FEATURES]),
                keras.layers.Dense(HIDDEN, activation="relu"),
                keras.layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.SGD(0.005)
        optimizer.build(model.trainable_variables)

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(batches: tf.distribute.DistributedIterator) -> tf.Tensor:
        losses = strategy.run(replica_step, args=next(batches))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    batches = iter(strategy.distribute_datasets_from_function(shard))
    losses = [float(step(batches)) for _ in range(steps)]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print("losses " + " ".join(f"{loss:.9g}" for loss in losses))


if __name__ == "__main__":
    main()
