"""Training steps that a job of two ranks traces. Rank 0 prints what each of them exchanges."""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

import rdma_transport.horovod as hvd
import rdma_transport.tensorflow as rt
from graph_analyzer import reductions
from rdma_transport.tensorflow import schemes, speeds

ROWS, WIDTH, LAYERS = 8, 512, 4  # each matrix is of 1 MiB
BATCH = tf.TensorSpec([ROWS, WIDTH])
SLOW_NETWORK = speeds.Speeds(reduce=1e-6, gather=1e-6, multiply=1e-12)
FAST_NETWORK = speeds.Speeds(reduce=1e-15, gather=1e-9, multiply=1e-12)

hvd.init()
matrices = [tf.Variable(tf.ones([WIDTH, WIDTH]), name=f"matrix_{i}") for i in range(LAYERS)]
biases = [tf.Variable(tf.ones([WIDTH]), name=f"bias_{i}") for i in range(LAYERS)]
table = tf.Variable(tf.ones([1000, WIDTH]), name="table")
variables = [each for pair in zip(matrices, biases, strict=True) for each in pair]


def layers(x: Any) -> Any:
    for matrix, bias in zip(matrices, biases, strict=True):
        x = tf.nn.relu(x @ matrix + bias)
    return x


@contextlib.contextmanager
def setting(value: str, found: speeds.Speeds | None = None) -> Iterator[None]:
    """Choose how gradients are sent; `found` are the speeds that ranks have measured."""
    os.environ["RDMA_TRANSPORT_GRADIENTS"] = value
    schemes.gradient_scheme.cache_clear()
    if found is not None:
        speeds.measured()
        speeds._found.speeds = found
    yield
    speeds._found.speeds = None


def taped(batch: tf.TensorSpec = BATCH, **options: Any) -> Any:
    """A loop of one's own with Horovod's tape."""

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layers(x))
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)

    return step.get_concrete_function(batch)


def looked_up() -> Any:
    @tf.function
    def step(indices: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layers(tf.gather(table, indices)))
        return hvd.DistributedGradientTape(tape).gradient(loss, [table])[0].values

    return step.get_concrete_function(tf.TensorSpec([ROWS], tf.int32))


def parallel() -> Any:
    forward = rt.parallel(layers, name="layers")

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(forward(x))
        return tape.gradient(loss, variables)

    return step.get_concrete_function(BATCH)


def shared() -> Any:
    """Two variables have one gradient."""

    def added(x: Any) -> Any:
        return x @ (matrices[0] + matrices[1]) + (biases[0] + biases[1])

    forward = rt.parallel(added)
    used = matrices[:2] + biases[:2]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(added(x))
        reduced = hvd.DistributedGradientTape(tape).gradient(loss, used)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(forward(x))
        return reduced, tape.gradient(loss, used)

    return step.get_concrete_function(BATCH)


def accumulated() -> Any:
    """Gradients of two passes are reduced in the second one."""
    optimizer = hvd.DistributedOptimizer(
        tf.keras.optimizers.SGD(), backward_passes_per_step=2, name="accumulated"
    )

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layers(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    return step.get_concrete_function(BATCH)


def in_a_session() -> Any:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [ROWS, WIDTH])
        options = {"shape": [WIDTH, WIDTH], "use_resource": True}
        first, last = (tf.compat.v1.get_variable(name, **options) for name in ("first", "last"))
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
        optimizer.minimize(tf.reduce_sum(tf.nn.relu(x @ first) @ last), var_list=[first, last])
    return graph


def nested() -> Any:
    """A step in a function of another one, of a loop and of a call in a program."""
    inner = tf.function(lambda x: taped_inline(x))

    @tf.function
    def outer(x: Any) -> Any:
        total = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, rt.all_reduce(y)), [0, x])
        return inner(x), total, rt.all_reduce(x[:1], name="metric")

    return outer.get_concrete_function(BATCH)


def taped_inline(x: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layers(x))
    return hvd.DistributedGradientTape(tape).gradient(loss, matrices)


CASES = {}
for name in ("dense", "factors", "bf16", "fp16"):
    with setting(name):
        CASES[name] = taped()
for name, measured in (("slow network", SLOW_NETWORK), ("fast network", FAST_NETWORK)):
    with setting("auto", measured):
        CASES[name] = taped()
with setting("factors"):
    CASES["shared factors"] = shared()
with setting("auto", SLOW_NETWORK):
    CASES["unknown rows"] = taped(tf.TensorSpec([None, WIDTH]))
    CASES["too many rows"] = taped(tf.TensorSpec([WIDTH, WIDTH]))
with setting("dense"):
    CASES["compressed"] = taped(compression=hvd.Compression.fp16)
    CASES["rows"] = looked_up()
    CASES["parallel"] = parallel()
    CASES["shared"] = shared()
    CASES["accumulated"] = accumulated()
    CASES["session"] = in_a_session()
    CASES["nested"] = nested()
if hvd.rank() == 0:
    found = {name: reductions(graph).as_dict() for name, graph in CASES.items()}
    found["dense of 8"] = reductions(CASES["dense"], ranks=8).as_dict()
    print(json.dumps(found))
