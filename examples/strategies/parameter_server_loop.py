"""A training loop of one's own: the chief gives steps to the workers, a server has the variables.

The chief, every worker and every server run this script, each with its own TF_CONFIG.
"""

import argparse

import tensorflow as tf

FEATURES, HIDDEN, BATCH = 64, 256, 64


def dataset(_: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    """Points and their norms, the same ones again and again on every worker."""
    x = tf.random.stateless_normal([BATCH, FEATURES], [3, 5])
    return tf.data.Dataset.from_tensors((x, tf.norm(x, axis=1, keepdims=True))).repeat()


def serve(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Do what the chief says until somebody ends this process."""
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
    )
    server.join()


def train(resolver: tf.distribute.cluster_resolver.ClusterResolver, steps: int) -> None:
    import keras  # which workers and servers do without

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([FEATURES]),
                keras.layers.Dense(HIDDEN, activation="relu"),
                keras.layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.SGD(0.002)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(batches: tf.data.Iterator) -> tf.Tensor:
        def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.run(replica_step, args=next(batches))

    batches = iter(coordinator.create_per_worker_dataset(dataset))
    losses = []
    for _ in range(steps):  # one after the other, so that the losses can be compared
        loss = coordinator.schedule(step, args=(batches,))
        losses.append(float(loss.fetch()))
    for _ in range(steps):  # as fast as the workers can
        loss = coordinator.schedule(step, args=(batches,))
    coordinator.join()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} -> {loss.fetch():.3f}")
    print("losses " + " ".join(f"{loss:.9g}" for loss in losses))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=20)
    steps = arguments.parse_args().steps
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "chief":
        train(resolver, steps)
    else:
        serve(resolver)


if __name__ == "__main__":
    main()
