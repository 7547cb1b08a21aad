"""A client of a cluster that runs good steps, and steps of which an operation fails.

usage: abort_client.py FRONT_END OPTIONS_JSON

Each line of input is a command, ["fail" or "reset" or "good", round]. "fail" is answered with
{"error", "message"}, whose "error" is null if the step did not fail; "good" likewise,
and with the "digest" of what was computed; "reset" makes the client ready for more steps. SIGUSR1
writes where each Python thread is.
"""

import ctypes
import faulthandler
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parent.parent.parent))


class FrontEnd(Protocol):
    """`options` has "spec", "protocol", "seed", and what the front end itself takes."""

    def __init__(self, options: dict[str, Any]) -> None: ...
    def fail(self, number: int) -> Any: ...
    def reset(self) -> None: ...
    def good(self, number: int) -> Any: ...


class _Plain:
    """What needs nothing after a failure."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.tasks = sorted(options.get("spec", {}))

    def reset(self) -> None:
        pass


class Sessions(_Plain):
    """Version 1: the "graph" of tests/support/abort_graphs.py, in a session for each of "rounds".

    The failing task is another one each time; `delay` is the most iterations before it fails.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.session: Any = None

    def fail(self, number: int) -> Any:
        self._prepare(number)
        return self._run(number, self.fetches[number % len(self.fetches)].failing, True)

    def good(self, number: int) -> Any:
        return self._run(number, self.fetches[number % len(self.fetches)].good, False)

    def _prepare(self, number: int) -> None:
        if number % self.options["rounds"] != 0 and self.session is not None:
            return
        from tests.support import graphs

        if self.session is not None:
            self.session.close()
        with graphs.tf.Graph().as_default() as graph:
            self.fetches = self._build(number)
            self.session = graphs.v1.Session(
                "grpc://" + self.options["spec"]["a"][0], graph=graph, config=graphs.config()
            )

    def _build(self, number: int) -> list[Any]:
        from tests.support import abort_graphs

        if self.options["graph"] == "random":
            return [abort_graphs.random_graph(self.tasks, self.options["seed"] * 1000 + number)]
        make = abort_graphs.GRAPHS[self.options["graph"]]
        waits = "delay" in self.options
        return [make(self.tasks, failing, waits) for failing in reversed(self.tasks)]

    def _run(self, number: int, fetches: Any, fails: bool) -> Any:
        most = self.options.get("delay", 0)
        delay = number * 7919 % most if most else 0
        return self.session.run(
            fetches,
            {
                one: value
                for made in self.fetches
                for one, value in ((made.fails, fails), (made.delay, delay))
            },
        )


class _Remote(_Plain):
    """Version 2: the tasks as devices of this process."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        import tensorflow as tf

        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(options["spec"]), job_name="chief", protocol=options["protocol"]
        )
        self.devices = [f"/job:{task}/task:0/device:CPU:0" for task in self.tasks]

    def _order(self, number: int) -> list[str]:
        turn = number % len(self.devices)
        return self.devices[turn:] + self.devices[:turn]


def _chain(order: list[str], fails: Any, size: int) -> list[Any]:
    """Each of three tasks computes on what the last one did; the second one fails if told to."""
    import tensorflow as tf

    first, second, third = order
    with tf.device(first):
        data = tf.random.stateless_uniform([size], [1, size])
    with tf.device(second):
        sign = tf.cast(tf.where(fails, -1.0, 1.0), tf.float32)
        there = tf.debugging.check_numerics(tf.math.log(data * sign + sign), "told to")
        # Without a scalar, of which TensorFlow would keep what it made in a failed step.
        twice = data + data
    with tf.device(third):
        joined = there + twice
    with tf.device(first):
        return [joined - data, tf.reduce_sum(twice)]


class Functions(_Remote):
    """A function across all tasks, of which another one fails each time."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.functions: dict[int, Any] = {}

    def fail(self, number: int) -> Any:
        return self._run(number, True)

    def good(self, number: int) -> Any:
        return self._run(number, False)

    def _run(self, number: int, fails: bool) -> Any:
        import tensorflow as tf

        key = number % 6
        if key not in self.functions:
            order, size = self._order(key), 30000 if key % 2 else 300
            self.functions[key] = tf.function(lambda fails: _chain(order, fails, size))
        return [one.numpy() for one in self.functions[key](tf.constant(fails))]


class Coordinator(_Plain):
    """ParameterServerStrategy: one of some functions that are scheduled at a time fails."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        import tensorflow as tf

        os.environ["TF_CONFIG"] = json.dumps(
            {
                "cluster": options["spec"],
                "task": {"type": "chief", "index": 0},
                "rpc_layer": options["protocol"],
            }
        )
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            self.weights = tf.Variable(tf.ones([100, 100]))

        @tf.function
        def step(fails: Any) -> Any:
            sign = tf.where(fails, -1.0, 1.0)
            product = tf.matmul(self.weights, self.weights) * 0.001
            checked = tf.debugging.check_numerics(tf.math.log(product * sign), "told to")
            self.weights.assign(tf.ones([100, 100]) + 0 * checked)
            return tf.reduce_sum(checked)

        self.step = step

    def fail(self, number: int) -> Any:
        return self._run(number % 4)

    def good(self, number: int) -> Any:
        return self._run(-1)

    def _run(self, failing: int) -> Any:
        import tensorflow as tf

        scheduled = [
            self.coordinator.schedule(self.step, args=(tf.constant(i == failing),))
            for i in range(4)
        ]
        self.coordinator.join()
        return [one.fetch() for one in scheduled]


class Mirrored(_Plain):
    """One worker of several; an operation before its collective fails in another one each time."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        import tensorflow as tf

        os.environ["TF_CONFIG"] = json.dumps(
            {
                "cluster": options["spec"],
                "task": {"type": "worker", "index": options["index"]},
                "rpc_layer": options["protocol"],
            }
        )
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self.workers = len(options["spec"]["worker"])

        @tf.function
        def step(fails: Any, size: Any) -> Any:
            def replica() -> Any:
                sign = tf.where(fails, -1.0, 1.0)
                data = tf.debugging.check_numerics(tf.math.log(tf.ones([size]) * sign), "told to")
                context = tf.distribute.get_replica_context()
                return context.all_reduce("SUM", data + 1.5)

            return self.strategy.run(replica)

        self.step = step

    def fail(self, number: int) -> Any:
        import tensorflow as tf
        from tensorflow.python.eager import context

        # TensorFlow waits forever, over gRPC too, for a worker of which the others have not heard.
        self._run(number, False)
        try:
            return self._run(number, number % self.workers == self.options["index"])
        except tf.errors.OpError as error:
            # Nor does it tell the others; a program that goes on does.
            context.context().abort_collective_ops(error.error_code, error.message)
            raise

    def good(self, number: int) -> Any:
        return self._run(number, False)

    def reset(self) -> None:
        from tensorflow.python.eager import context

        current = context.context()
        current.enable_collective_ops(current._collective_ops_server_def)

    def _run(self, number: int, fails: bool) -> Any:
        import tensorflow as tf

        size = 30000 if number % 2 else 300
        return self.step(tf.constant(fails), tf.constant(size)).numpy()


class Keras(Mirrored):
    """`fit` of a model on mirrored workers; one of its layers refuses what it is fed."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        import tensorflow as tf

        with self.strategy.scope():
            self.model = tf.keras.Sequential(
                [
                    tf.keras.layers.Dense(300, input_shape=(30,), kernel_initializer="ones"),
                    tf.keras.layers.Lambda(lambda x: tf.debugging.check_numerics(x, "told to")),
                    tf.keras.layers.Dense(1, kernel_initializer="ones"),
                ]
            )
            self.model.compile("sgd", "mse")
        self.weights = self.model.get_weights()

    def _run(self, number: int, fails: bool) -> Any:
        import tensorflow as tf

        self.model.set_weights(self.weights)
        data = tf.fill([4, 30], float("nan") if fails else number / 1000)
        batches = tf.data.Dataset.from_tensors((data, tf.ones([4, 1]))).repeat(2)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        fitted = self.model.fit(batches.with_options(options), epochs=1, verbose=0)
        return fitted.history["loss"], self.model.get_weights()


FRONT_ENDS: dict[str, type[FrontEnd]] = {
    made.__name__: made for made in (Sessions, Functions, Coordinator, Mirrored, Keras)
}


def digest(results: Any) -> str:
    import numpy as np
    import tensorflow as tf

    flat = [np.asarray(one) for one in tf.nest.flatten(results) if one is not None]
    described = b"".join(f"{one.dtype}{one.shape}".encode() + one.tobytes() for one in flat)
    return hashlib.sha256(described).hexdigest()


def answer(front_end: FrontEnd, command: str, number: int) -> dict[str, Any]:
    said: dict[str, Any] = {"error": None, "message": "", "digest": None}
    try:
        if command == "reset":
            front_end.reset()
        else:
            said["digest"] = digest(getattr(front_end, command)(number))
    except Exception as error:
        said |= {"error": type(error).__name__, "message": str(error)}
    return said


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the parent
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    front_end = FRONT_ENDS[sys.argv[1]](json.loads(sys.argv[2]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command, number = json.loads(line)
        print(json.dumps(answer(front_end, command, number)), flush=True)
    os._exit(0)  # TensorFlow's own shutdown may wait for tasks that are gone


if __name__ == "__main__":
    main()
