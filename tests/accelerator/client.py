"""A client of TensorFlow 2 with an accelerator, as the task "chief" of a cluster.

usage: client.py KIND PROTOCOL CLUSTER_JSON

Runs the steps of the kind and writes a digest of the results' bits, and the transport's counters.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.support.accelerator_strategies import parameter_server_strategy
from tests.support.accelerators import LIBRARY, Library

SIDE = 160
STEPS = 4
PS = "/job:ps/replica:0/task:0/device:PRETEND:0"
WORKER = "/job:worker/replica:0/task:0/device:PRETEND:1"
WORKER_CPU = "/job:worker/replica:0/task:0/device:CPU:0"
OWN = "/job:chief/replica:0/task:0/device:PRETEND:0"


def data(seed: int) -> Any:
    import tensorflow as tf

    with tf.device("/job:chief/task:0/device:CPU:0"):
        return tf.random.stateless_uniform([SIDE, SIDE], [seed, 1], -0.1, 0.1)


def connect(protocol: str, cluster: dict[str, list[str]]) -> None:
    import tensorflow as tf

    # It includes this task. Otherwise TensorFlow tells the others to reach it at localhost.
    spec = tf.train.ClusterSpec(cluster)
    tf.config.experimental_connect_to_cluster(spec, job_name="chief", protocol=protocol)


def functions(protocol: str, cluster: dict[str, list[str]]) -> list[Any]:
    """A function over accelerators of three tasks, and variables on one of them."""
    import tensorflow as tf

    connect(protocol, cluster)
    with tf.device(PS):
        weights = tf.Variable(data(1))

    @tf.function
    def step(x: Any) -> Any:
        with tf.device(OWN):
            scaled = x * 0.5
        with tf.device(WORKER):
            product = tf.matmul(weights, scaled)
        with tf.device(PS):
            weights.assign(weights - product)
            shape = tf.shape(product)
        with tf.device(WORKER_CPU):
            total = tf.reduce_sum(product) + tf.cast(shape[0], tf.float32)
        with tf.device(OWN):
            return tf.square(product), total

    results = [step(data(10 + number)) for number in range(STEPS)]
    return [*(value.numpy() for pair in results for value in pair), weights.numpy()]


def operations(protocol: str, cluster: dict[str, list[str]]) -> list[Any]:
    """Single operations on accelerators, whose results go from task to task."""
    import tensorflow as tf

    connect(protocol, cluster)
    x = data(2)
    results = []
    for number in range(STEPS):
        for device in (OWN, PS, WORKER, WORKER_CPU, PS):
            with tf.device(device):
                x = tf.negative(tf.square(x) * 1.5) - float(number)
        results.append(x.numpy())
    return results


def after_a_fault(protocol: str, cluster: dict[str, list[str]]) -> list[Any]:
    """Copies after one that may fail. All copies of a client are of one step of its context."""
    import tensorflow as tf

    connect(protocol, cluster)
    results = []
    failures = 0
    for seed in range(1 + STEPS):
        try:
            with tf.device(PS):
                x = tf.square(data(seed))
            with tf.device(WORKER):
                x = tf.negative(x)
            results.append(x.numpy())
        except tf.errors.OpError as error:
            failures += 1
            print(error, file=sys.stderr)
    assert failures <= 1  # none if gRPC carries what could not be copied
    return results[-STEPS:]


def parameter_server_replicas(protocol: str, cluster: dict[str, list[str]]) -> list[Any]:
    """The strategy's own replicas, on all accelerators of the workers.

    Workers compute gradients at the same time, from the same weights.
    """
    import tensorflow as tf

    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": cluster, "task": {"type": "chief", "index": 0}, "rpc_layer": protocol}
    )
    strategy = parameter_server_strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    replicas = strategy.num_replicas_in_sync
    assert replicas == 2
    with strategy.scope():
        weights = [
            tf.Variable(initial, aggregation=tf.VariableAggregation.SUM)
            for initial in (data(1), data(2)[:, :5])
        ]

    def gradients(x: Any) -> Any:
        with tf.GradientTape() as tape:
            error = tf.matmul(tf.square(tf.matmul(x, weights[0])), weights[1])
        return tape.gradient(error, list(weights), output_gradients=error)

    def of_replica(seed: Any) -> Any:
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.random.stateless_uniform([8, SIDE], tf.stack([seed, rank]), -1.0, 1.0)

    @tf.function
    def compute(seed: Any) -> Any:
        per_replica = strategy.run(lambda: gradients(of_replica(seed)))
        return [strategy.reduce("SUM", each, axis=None) for each in per_replica]

    @tf.function
    def update(seed: Any, *others: Any) -> None:
        def replica() -> None:
            own = gradients(of_replica(seed))
            for weight, gradient, other in zip(weights, own, others, strict=True):
                weight.assign_sub((gradient + other * (1.0 / replicas)) * 0.001)

        strategy.run(replica)

    results = []
    for number in range(STEPS):
        both = [coordinator.schedule(compute, (tf.constant(2 * number + i),)) for i in (0, 1)]
        first, second = coordinator.fetch(both)
        results += [*first, *second]
        coordinator.schedule(update, (tf.constant(100 + number), *first))
        coordinator.join()
    return [*results, *(weight.numpy() for weight in weights)]


KINDS: dict[str, Callable[[str, dict[str, list[str]]], list[Any]]] = {
    kind.__name__: kind
    for kind in (functions, operations, after_a_fault, parameter_server_replicas)
}


def main() -> None:
    kind, protocol, cluster = sys.argv[1:]
    Library(os.environ[LIBRARY]).load()
    results = KINDS[kind](protocol, json.loads(cluster))
    import rdma_transport

    bits = b"".join(array.tobytes() for array in results)
    digest = hashlib.sha256(bits).hexdigest()
    print(json.dumps({"digest": digest, "stats": rdma_transport.stats()}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
