"""One rank of `bench.data_parallel`: trains over one system, as its users would write it.

usage: python -m bench.support.data_parallel_rank SYSTEM

Prints {"pids": of all ranks it speaks for} when it has started, or {"skip": why}. Reads a line of
JSON per request. {"case": name, "batch": of a rank, "schemes": values of GRADIENTS} makes what it
trains. {"steps": n} takes n steps of each kind: "reduced", the same with each scheme, "alone",
which reduces nothing, and "exchange", which does nothing else. It is answered with the "times" of
each, in milliseconds, and the bytes that a rank "sent" per step. Standard output is for answers
alone.

Under mpirun rank 0 alone reads, and tells the others.
"""

import ctypes
import functools
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .data_parallel_steps import RATE, Alone, Kinds, Steps, timed

BLOCK = 10  # steps of one kind, before as many of the other


class Horovod(Alone):
    """The interface of Horovod: its own library, or rdma_transport's, whichever is imported."""

    exchanges = True

    def __init__(self, system: str) -> None:
        if system == "horovod-gloo":
            _serve_rendezvous()
        import horovod.tensorflow as hvd

        if system == "horovod-mpi" and not hvd.mpi_built():
            raise NotImplementedError("it was built without MPI")
        if system == "horovod-gloo" and not hvd.gloo_built():
            raise NotImplementedError("it was built without gloo")
        hvd.init()
        self.hvd, self.system, self.rank = hvd, system, hvd.rank()
        if hvd.size() != int(os.environ["WORLD_SIZE"]):
            raise RuntimeError(f"size() is {hvd.size()} of {os.environ['WORLD_SIZE']} ranks")
        self.told = system == "horovod-mpi"  # by rank 0
        self.pids = hvd.allgather_object(os.getpid()) if self.told else [os.getpid()]

    def reduced(self, tape: Any, loss: Any, variables: list[Any], scheme: str = "none") -> Any:
        compression = getattr(self.hvd.Compression, scheme)
        made = self.hvd.DistributedGradientTape(tape, compression=compression)
        return made.gradient(loss, variables)

    def optimizer(self, keras: Any, scheme: str = "none") -> Any:
        import horovod.tensorflow.keras as hvd

        optimizer = keras.optimizers.SGD(RATE)
        return hvd.DistributedOptimizer(optimizer, compression=getattr(hvd.Compression, scheme))

    def keras(self) -> Any:
        if not self.system.startswith("horovod"):
            return super().keras()
        import tf_keras  # with Keras 3 it reduces nothing, and says nothing

        return tf_keras

    def line(self) -> str:
        line = sys.stdin.readline() if self.rank == 0 or not self.told else ""
        return str(self.hvd.broadcast_object(line, 0)) if self.told else line


def _serve_rendezvous() -> None:
    """Serve the values through which gloo's ranks find each other, on rank 0; wait on others."""
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if os.environ["RANK"] != "0":
        while not _listens(place):
            time.sleep(0.05)
        return
    from horovod.runner.http.http_server import KVStoreHandler, KVStoreHTTPServer

    class Handler(KVStoreHandler):
        def do_DELETE(self) -> None:
            self.send_status_code(200)

    server = KVStoreHTTPServer(place, Handler, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _listens(place: tuple[str, int]) -> bool:
    try:
        socket.create_connection(place, 5).close()
    except OSError:
        return False
    return True


class Strategy(Alone):
    """MultiWorkerMirroredStrategy; TF_CONFIG says where, and over what."""

    exchanges = True

    def __init__(self) -> None:
        import tensorflow as tf

        super().__init__()
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self.strategy.scope()
        return scope

    def reduced(self, tape: Any, loss: Any, variables: list[Any], scheme: str = "none") -> Any:
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.MEAN, tape.gradient(loss, variables))

    def replicated(self, step: Callable[[], Any]) -> Any:
        return self.strategy.run(step)

    def keras(self) -> Any:
        import tf_keras

        return tf_keras


class Unchanged(Alone):
    """What `run --data-parallel` does: ranks share the calls of a model for a whole batch."""

    def __init__(self) -> None:
        import rdma_transport.tensorflow as rt

        super().__init__()
        self.size, self.rank = rt.connect().size, 0  # all have the same examples

    def batch(self, batch: int) -> int:
        return batch * self.size

    def forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        import rdma_transport.tensorflow as rt

        shared: Callable[..., Any] = rt.parallel(function)
        return shared

    def follow(self, reduces: bool) -> None:
        from rdma_transport.keras import DataParallel, set_distribution

        set_distribution(DataParallel() if reduces else None)


def reducing(schemes: Sequence[str]) -> dict[str, str]:
    """Return the kinds of steps that reduce, and the compression of each."""
    return {"reduced": "none"} | {each: each for each in schemes}


def trained(system: Alone, case: str, one: int, schemes: Sequence[str]) -> Kinds:
    """Return the steps of a model."""
    import tensorflow as tf

    from ..data_parallel_cases import CASES
    from ..models.training import declared

    model, batch = CASES[case], system.batch(one)
    with system.scope():
        variables = {
            each.name: tf.Variable(each.initializer(each.shape, [1, index]))
            for index, each in enumerate(declared(model))
        }
    seeds = [1, -2 * system.rank - 1], [1, -2 * system.rank - 2]
    features = tf.random.stateless_normal(
        model.features_shape(batch), seeds[0], stddev=model.deviation
    )
    labels = tf.random.stateless_uniform([batch], seeds[1], maxval=model.classes, dtype=tf.int32)
    weights = list(variables.values())

    def losses(features: Any, labels: Any) -> Any:
        loss = model.loss(features, labels, lambda name, *_: variables[name])
        return tf.fill(tf.shape(labels), loss)

    def step(gradients: Callable[..., Any], part: int, forward: Callable[..., Any]) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(forward(features[:part], labels[:part]))
        for weight, gradient in zip(weights, gradients(tape, loss, weights), strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=RATE, delta=gradient)
        return loss

    def reduced(scheme: str) -> Steps:
        gradients = functools.partial(system.reduced, scheme=scheme)

        @tf.function
        def take() -> Any:
            return system.replicated(lambda: step(gradients, batch, system.forward(losses)))

        return timed(take)

    @tf.function
    def alone() -> Any:
        gradients: Callable[..., Any] = lambda tape, loss, of: tape.gradient(loss, of)  # noqa: E731
        return system.replicated(lambda: step(gradients, one, losses))

    class Given(tf.GradientTape):
        def gradient(self, *_: Any, **__: Any) -> list[Any]:
            return [tf.identity(weight) for weight in weights]

    def exchanged() -> Any:
        with tf.control_dependencies(system.reduced(Given(), None, weights)):
            return tf.zeros([])

    @tf.function
    def exchange() -> Any:
        return system.replicated(exchanged)

    kinds = {kind: reduced(scheme) for kind, scheme in reducing(schemes).items()}
    kinds["alone"] = timed(alone)
    return kinds | ({"exchange": timed(exchange)} if system.exchanges else {})


def fitted(system: Alone, one: int, schemes: Sequence[str]) -> Kinds:
    """Return the steps of `fit`."""
    import tensorflow as tf

    from ..data_parallel_cases import FIT_CLASSES, FIT_INPUTS, FIT_LAYERS, FIT_WIDTH

    keras = system.keras()

    class Clock(keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_train_begin(self, logs: Any = None) -> None:
            self.taken: list[float] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.start = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.taken.append(1e3 * (time.perf_counter() - self.start))

    def steps_of(optimizer: Any, batch: int, reduces: bool) -> Steps:
        layers = [keras.layers.Dense(FIT_WIDTH, activation="relu") for _ in range(FIT_LAYERS)]
        model = keras.Sequential(
            [keras.Input((FIT_INPUTS,)), *layers, keras.layers.Dense(FIT_CLASSES)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer, loss=loss)

        data = tf.data.Dataset.from_tensors((x[:batch], y[:batch])).repeat().with_options(options)

        def steps(count: int) -> list[float]:
            clock = Clock()
            system.follow(reduces)
            model.fit(data, steps_per_epoch=count, epochs=1, verbose=0, callbacks=[clock])
            return clock.taken

        return steps

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    x = tf.random.stateless_normal([system.batch(one), FIT_INPUTS], [1, system.rank])
    y = tf.cast(tf.abs(x[:, 0]) * 3, tf.int32) % FIT_CLASSES
    keras.utils.set_random_seed(7)
    with system.scope():
        kinds = {
            kind: steps_of(system.optimizer(keras, scheme), system.batch(one), True)
            for kind, scheme in reducing(schemes).items()
        }
    return kinds | {"alone": steps_of(keras.optimizers.SGD(RATE), one, False)}


def sent() -> int:
    """The bytes that left this host, of all its ranks."""
    with open("/proc/thread-self/net/dev") as file:
        lines = [line.split(":") for line in file.readlines()[2:]]
    return sum(int(counts.split()[8]) for name, counts in lines if name.strip() != "lo")


def made(name: str) -> tuple[Any, Callable[[str, int, Sequence[str]], Kinds]]:
    """Start a system; return it, and what makes the steps of a case."""
    from ..data_parallel_cases import FIT

    if name == "ddp":
        from .data_parallel_torch import DistributedDataParallel

        ddp = DistributedDataParallel()
        return ddp, lambda case, one, _: ddp.trained(case, one)
    if name.startswith("strategy"):
        system: Alone = Strategy()
    elif name == "alone":
        system = Alone()
    elif name == "unchanged":
        system = Unchanged()
    else:
        system = Horovod(name)
    return system, lambda case, one, schemes: (
        fitted(system, one, schemes) if case == FIT else trained(system, case, one, schemes)
    )


def answer(request: dict[str, Any], kinds: Kinds) -> dict[str, Any]:
    """Take steps, all kinds in turns."""
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    bytes_sent = dict.fromkeys(kinds, 0.0)
    left = request["steps"]
    senders = left * int(os.environ["LOCAL_WORLD_SIZE"])
    while left > 0:
        count = min(left, BLOCK)
        for kind in sorted(kinds):  # as the other ranks
            before = sent()
            times[kind] += kinds[kind](count)
            bytes_sent[kind] += (sent() - before) / senders
        left -= count
    return {"times": times, "sent": bytes_sent}


def main(name: str) -> None:
    """Serve until standard input ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # end with the parent
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if given := os.environ.get("BENCH_PROCESSORS"):
        os.sched_setaffinity(0, [int(each) for each in given.split(",")])
    try:
        system, make = made(name)
        first: dict[str, Any] = {"pids": system.pids}
    except (ImportError, NotImplementedError) as error:
        system, first = None, {"skip": str(error)}

    def say(what: dict[str, Any]) -> None:
        if system is None or system.rank == 0 or not getattr(system, "told", False):
            print(json.dumps(what), file=answers, flush=True)

    say(first)
    steps: Kinds | None = None
    while system is not None and (line := system.line()):
        request = json.loads(line)
        try:
            if "case" in request:
                steps = None
                gc.collect()
                steps = make(request["case"], request["batch"], request["schemes"])
                say({})
            else:
                assert steps is not None
                say(answer(request, steps))
        except NotImplementedError as error:
            say({"skip": str(error)})


if __name__ == "__main__":
    main(sys.argv[1])
