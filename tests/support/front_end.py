"""A client of TensorFlow 2, as a task of its own: runs training steps whenever it is told to.

usage: front_end.py PROTOCOL JOB INDEX CLUSTER_JSON, with the kind of client in FRONT_END

Reads lines: a number of steps to run, which may be 0, or "weights". Answers with JSON: what its
transport counted so far, or a digest of the weights' bits.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

SIDE = 256  # of each of the weights, 256 KiB
LAYERS = 2
BATCH = 8
Run = Callable[[int], None]  # runs some steps
Weights = Callable[[], list[Any]]
FrontEnd = tuple[Run, Weights]


def batch() -> Any:
    import tensorflow as tf

    return tf.random.stateless_normal([BATCH, SIDE], [3, 5])


def parameter_server_strategy() -> Any:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.ParameterServerStrategy(resolver)


def built(strategy: Any, keras: Any) -> Any:
    keras.utils.set_random_seed(7)
    with strategy.scope():
        layers = [keras.layers.Dense(SIDE, activation="tanh") for _ in range(LAYERS)]
        return keras.Sequential([keras.layers.Input([SIDE]), *layers])


def coordinator() -> FrontEnd:
    """A loop of one's own, with Keras 3."""
    os.environ["TF_USE_LEGACY_KERAS"] = "0"
    import keras
    import tensorflow as tf

    strategy = parameter_server_strategy()
    schedule = tf.distribute.coordinator.ClusterCoordinator(strategy)
    model = built(strategy, keras)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step() -> Any:
        def replica() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(batch(), training=True) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.run(replica)

    def run(steps: int) -> None:
        for _ in range(steps):
            schedule.schedule(step)
            schedule.join()

    return run, lambda: [variable.numpy() for variable in model.trainable_variables]


def fit() -> FrontEnd:
    """Keras 2's `fit`. That of Keras 3 fails under this strategy, over gRPC as well."""
    import tensorflow as tf
    import tf_keras as keras

    model = built(parameter_server_strategy(), keras)
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    data = keras.utils.experimental.DatasetCreator(
        lambda _: tf.data.Dataset.from_tensors((batch(), -batch())).repeat()
    )

    def run(steps: int) -> None:
        # One step an epoch: those of an epoch overlap.
        model.fit(data, epochs=steps, steps_per_epoch=1, verbose=0)

    return run, lambda: [variable.numpy() for variable in model.trainable_variables]


def functions() -> FrontEnd:
    """A function over two remote tasks, called with a tensor of this one."""
    import tensorflow as tf

    protocol, _, _, cluster = sys.argv[1:]
    # It includes this task. Otherwise TensorFlow tells the others to reach it at localhost.
    spec = tf.train.ClusterSpec(json.loads(cluster))
    tf.config.experimental_connect_to_cluster(spec, job_name="chief", protocol=protocol)
    with tf.device("/job:ps/task:0"):
        weights = tf.Variable(tf.random.stateless_normal([SIDE, SIDE], [1, 2]))

    @tf.function
    def step(scale: Any) -> Any:
        with tf.device("/job:worker/task:0"):
            gradient = tf.tanh(weights) * scale
        with tf.device("/job:ps/task:0"):
            weights.assign_sub(gradient)
        return gradient

    last: list[Any] = []

    def run(steps: int) -> None:
        for _ in range(steps):
            last[:] = [step(tf.random.stateless_uniform([SIDE, SIDE], [1, 1], 0.0, 0.1))]

    return run, lambda: [weights.numpy(), last[0].numpy()]


def mirrored() -> FrontEnd:
    """One of the workers, which all run the same steps, each with data of its own."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = int(sys.argv[3])
    with strategy.scope():
        weights = tf.Variable(tf.random.stateless_normal([SIDE, SIDE], [1, 2]))

    @tf.function
    def step() -> Any:
        def replica() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.matmul(batch() * (index + 1.0), weights) ** 2)
            gradient = tape.gradient(loss, weights)
            total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            weights.assign_sub(0.1 * total)

        strategy.run(replica)

    def run(steps: int) -> None:
        for _ in range(steps):
            step()

    return run, lambda: [weights.numpy()]


def main() -> None:
    protocol, job, index, cluster = sys.argv[1:]
    os.environ["TF_CONFIG"] = json.dumps(
        {
            "cluster": json.loads(cluster),
            "task": {"type": job, "index": int(index)},
            "rpc_layer": protocol,
        }
    )
    kinds = (coordinator, fit, functions, mirrored)
    run, weights = {kind.__name__: kind for kind in kinds}[os.environ["FRONT_END"]]()
    print(json.dumps({"ready": True}), flush=True)
    import rdma_transport

    for line in sys.stdin:
        if line.strip() == "weights":
            bits = b"".join(array.tobytes() for array in weights())
            print(json.dumps(hashlib.sha256(bits).hexdigest()), flush=True)
            continue
        if int(line):
            run(int(line))
        print(json.dumps(rdma_transport.stats()), flush=True)


if __name__ == "__main__":
    main()
