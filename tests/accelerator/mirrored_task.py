"""A worker of MultiWorkerMirroredStrategy, whose replicas run on its pretend accelerators.

usage: mirrored_task.py TF_CONFIG

Answers each line with JSON: a number of steps to train, with {"digest": of all weights' bits,
"losses": in hexadecimal}; "gather" with the digest of what all replicas gathered; "stats" with the
transport's counters; "count" with the library's; "devices" with the types of devices that hold the
weights.
"""

import ctypes
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.support.accelerator_strategies import mirrored_strategy
from tests.support.accelerators import LIBRARY, Library

SIDES = (96, 700, 3)  # of the layers: weights of 262.5 and 8.2 KiB, and a bias of 12 B
BATCH = 8  # of each replica
RATE = 0.001


class Training:
    """Of two layers, with data that differs between replicas and steps."""

    def __init__(self, strategy: Any) -> None:
        import tensorflow as tf

        self.strategy = strategy
        self.step_number = 0

        def uniform(shape: list[int], seed: int) -> Any:
            return tf.random.stateless_uniform(shape, [seed, 5], -0.1, 0.1)

        shapes = [[SIDES[0], SIDES[1]], [SIDES[1], SIDES[2]], [1, SIDES[2]]]
        with strategy.scope():
            # Workers get those of the first one, whatever they ask for.
            own = 10 * (1 + strategy.extended._id_in_cluster)
            self.weights = [tf.Variable(uniform(shape, own + i)) for i, shape in enumerate(shapes)]

        @tf.function
        def replica_step(x: Any, y: Any) -> Any:
            wide, narrow, bias = self.weights
            with tf.GradientTape() as tape:
                ones = tf.ones([BATCH, 1])
                hidden = tf.square(tf.matmul(x, wide))
                error = tf.matmul(hidden, narrow) + tf.matmul(ones, bias) - y
            # Of the sum of squares.
            gradients = tape.gradient(error, self.weights, output_gradients=error)
            context = tf.distribute.get_replica_context()
            totals = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            for weight, total in zip(self.weights, totals, strict=True):
                weight.assign(weight - total * RATE)
            return tf.matmul(error, error, transpose_a=True)

        @tf.function
        def step(number: Any) -> Any:
            def data(context: Any) -> Any:
                seed = tf.stack([number, context.replica_id_in_sync_group])
                x = tf.random.stateless_uniform([BATCH, SIDES[0]], seed, -1.0, 1.0)
                return x, x[:, : SIDES[2]]

            values = strategy.experimental_distribute_values_from_function(data)
            errors = strategy.run(replica_step, args=values)
            return strategy.reduce(tf.distribute.ReduceOp.MEAN, errors, axis=None)

        self.step = step

    def train(self, steps: int) -> dict[str, Any]:
        import tensorflow as tf

        losses = []
        for _ in range(steps):
            self.step_number += 1
            loss = self.step(tf.constant(self.step_number))
            losses.append(float(tf.linalg.trace(loss)).hex())
        return {"digest": digest([copy.numpy() for copy in self.copies()]), "losses": losses}

    def copies(self) -> list[Any]:
        """Return this worker's copies of the weights, one on each of its accelerators."""
        local = self.strategy.experimental_local_results
        return [copy for weight in self.weights for copy in local(weight)]

    def gather(self) -> dict[str, Any]:
        """Gather what differs in length, and sum slices of some rows."""
        import tensorflow as tf

        def rows(context: Any) -> Any:
            rank = context.replica_id_in_sync_group
            return tf.random.stateless_uniform([2 + 3 * rank, 7], [rank, 1], -1.0, 1.0)

        def replica(value: Any) -> Any:
            context = tf.distribute.get_replica_context()
            indices = tf.range(tf.shape(value)[0]) % 4
            slices = tf.IndexedSlices(value, indices, tf.constant([4, 7]))
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, slices)
            return tf.negative(context.all_gather(value, axis=0)), total.values, total.indices

        @tf.function
        def step(value: Any) -> Any:
            return self.strategy.run(replica, args=(value,))

        values = self.strategy.experimental_distribute_values_from_function(rows)
        results = [self.strategy.gather(values, axis=0), *step(values)]
        copies = [
            copy.numpy()
            for result in results
            for copy in self.strategy.experimental_local_results(result)
        ]
        return {"digest": digest(copies), "shapes": [copy.shape for copy in copies]}

    def devices(self) -> list[str]:
        import tensorflow as tf

        devices = [tf.DeviceSpec.from_string(copy.device) for copy in self.copies()]
        return sorted({device.device_type for device in devices})


def digest(arrays: list[Any]) -> str:
    """Return a digest of the arrays' bits."""
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the parent
    os.environ["TF_CONFIG"] = sys.argv[1]
    library = Library(os.environ[LIBRARY])
    library.load()
    training = Training(mirrored_strategy())
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command == "stats":
            import rdma_transport

            answer: Any = rdma_transport.stats()
        elif command == "count":
            answer = library.counters()
        elif command == "gather":
            answer = training.gather()
        elif command == "devices":
            answer = training.devices()
        else:
            answer = training.train(command)
        print(json.dumps(answer), flush=True)
    os._exit(0)  # TensorFlow's own shutdown waits for workers that may be gone


if __name__ == "__main__":
    main()
