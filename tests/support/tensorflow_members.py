"""Ranks that run TensorFlow operations, each in a process of its own; NumPy is the oracle."""

import concurrent.futures
import os
import random
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport._collectives import DTYPES
from rdma_transport.collectives import Ranks
from tests.support.deadlines import patient
from tests.support.members import SOON, Error, Members, combined, same, values

OPS = {"sum": "sum", "min": "min", "max": "max", "product": "prod"}
MODES = ("eager", "function", "graph")
Call = Callable[[Any], Any]


def members(size: int) -> Members:
    return Members(size, target=serve)


def serve(pipe: Any, ranks: Ranks, settings: dict[str, str], _: str | None) -> None:
    os.environ.update(settings)
    rt.connect(ranks, timeout=patient(SOON))
    while True:
        try:
            name, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send(globals()[name](*arguments))
        except BaseException as error:
            pipe.send(Error(f"{type(error).__name__}: {error}"))


def run(mode: str, compute: Callable[..., Any], arrays: list[Any]) -> list[Any]:
    """Compute in a mode; return arrays."""
    if mode == "eager":
        return [each.numpy() for each in compute([tf.constant(array) for array in arrays])]
    if mode == "function":
        made = tf.function(compute)
        return [each.numpy() for each in made([tf.constant(array) for array in arrays])]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = [tf.compat.v1.placeholder(array.dtype, array.shape) for array in arrays]
        fed = dict(zip(inputs, arrays, strict=True))
        return list(session.run(compute(inputs), fed))


# --- Each kind and type ---


def kinds(mode: str, seed: int) -> None:
    """All kinds of calls with all types, in one graph."""
    cases: list[tuple[Any, Call, list[Any]]] = []
    for number, dtype in enumerate(DTYPES):
        cases += reductions(dtype, seed + number)
        cases += moves(dtype, seed + number)
    cases += scaled(seed)

    def compute(inputs: list[Any]) -> list[Any]:
        return [
            result
            for tensor, (_, call, _) in zip(inputs, cases, strict=True)
            for result in tf.nest.flatten(call(tensor))
        ]

    results = run(mode, compute, [array for array, _, _ in cases])
    expected = [array for _, _, arrays in cases for array in arrays]
    assert len(results) == len(expected)
    for result, array in zip(results, expected, strict=True):
        same(result, array)


def of_all(shape: Callable[[int], Any], dtype: str, seed: int) -> list[Any]:
    return [values(rank, shape(rank), dtype, seed) for rank in range(rt.world().size)]


def averaged(total: Any, size: int) -> Any:
    if total.dtype.kind in "iu":
        return np.asarray(np.trunc(total / size)).astype(total.dtype)
    return (total / np.asarray(size, total.dtype)).astype(total.dtype)


def reductions(dtype: str, seed: int) -> list[tuple[Any, Call, list[Any]]]:
    rank, size = rt.world().rank, rt.world().size
    made: list[tuple[Any, Call, list[Any]]] = []
    for shape in ((), (0, 2), (5, 3), (70, 1001)):
        arrays = of_all(lambda _, shape=shape: shape, dtype, seed)  # type: ignore[misc]
        for op, known in OPS.items():
            if dtype.startswith("complex") and op in ("min", "max"):
                continue
            if shape != (5, 3) and op != "sum":
                continue
            total = combined(arrays, known)
            made.append((arrays[rank], lambda x, op=op: rt.all_reduce(x, op), [total]))
            if shape == (5, 3):
                part = np.array_split(total, size)[rank]
                made.append((arrays[rank], lambda x, op=op: rt.reduce_scatter(x, op), [part]))
        if dtype in ("float32", "float64", "int32", "int64", "uint8"):
            mean = averaged(combined(arrays, "sum"), size)
            made.append((arrays[rank], lambda x: rt.all_reduce(x, "average"), [mean]))
    return made


def moves(dtype: str, seed: int) -> list[tuple[Any, Call, list[Any]]]:
    rank, size = rt.world().rank, rt.world().size
    scalars = of_all(lambda _: (), dtype, seed)
    uneven = of_all(lambda rank: (2 * rank, 3), dtype, seed)
    equal = of_all(lambda _: (2 * size, 5), dtype, seed)
    splits = [[(source + to) % 3 for to in range(size)] for source in range(size)]
    rows = of_all(lambda source: (sum(splits[source]), 2), dtype, seed)
    parts = [np.split(rows[source], np.cumsum(splits[source])[:-1])[rank] for source in range(size)]
    counts = np.array([splits[source][rank] for source in range(size)], np.int32)
    halves = np.concatenate([array[2 * rank : 2 * rank + 2] for array in equal])
    return [
        (scalars[rank], rt.all_gather, [np.array(scalars)]),
        (uneven[rank], rt.all_gather, [np.concatenate(uneven)]),
        (
            uneven[rank],
            lambda x: rt.grouped_all_gather([x, x[:, :1]]),
            [np.concatenate(uneven), np.concatenate(uneven)[:, :1]],
        ),
        (equal[rank], lambda x: rt.broadcast(x, size - 1), [equal[size - 1]]),
        (equal[rank], rt.all_to_all, [halves, np.full(size, 2, np.int32)]),
        (
            rows[rank],
            lambda x: rt.all_to_all(x, splits[rank]),
            [np.concatenate(parts), counts],
        ),
    ]


def scaled(seed: int) -> list[tuple[Any, Call, list[Any]]]:
    rank = rt.world().rank
    arrays = of_all(lambda _: (3, 7), "float64", seed)
    total = combined([array * 0.5 for array in arrays], "sum") * 0.25
    factors = {"prescale": 0.5, "postscale": 0.25}

    def grouped(x: Any) -> Any:
        return rt.grouped_all_reduce([x, x[:1], x[0, 0]], **factors)

    return [
        (arrays[rank], lambda x: rt.all_reduce(x, **factors), [total]),
        (arrays[rank], grouped, [total, total[:1], total[0, 0]]),
    ]


def slices(mode: str) -> None:
    """Sparse gradients are gathered."""
    rank, size = rt.world().rank, rt.world().size

    def compute(inputs: list[Any]) -> list[Any]:
        given = tf.IndexedSlices(inputs[0], inputs[1], tf.constant([10, 2]))
        found = rt.all_reduce(given, "average")
        return [found.values, found.indices]

    rows = [np.full((r + 1, 2), r + 1, np.float32) for r in range(size)]
    places = [np.arange(r + 1, dtype=np.int64) for r in range(size)]
    results = run(mode, compute, [rows[rank], places[rank]])
    same(results[0], np.concatenate(rows) / np.float32(size))
    same(results[1], np.concatenate(places))


# --- Graphs ---


def loops(iterations: int) -> None:
    """Iterations of a loop that run at once; the next is inside it."""

    @tf.function
    def compute(x: Any) -> Any:
        def inner(j: Any, found: Any) -> Any:
            return j + 1, found.write(j, rt.all_reduce(x * tf.cast(j, x.dtype)))

        def outer(i: Any, found: Any) -> Any:
            array = tf.TensorArray(x.dtype, 3, element_shape=[])
            _, array = tf.while_loop(lambda j, _: j < 3, inner, [0, array])
            return i + 1, found.write(i, rt.all_reduce(x + tf.cast(i, x.dtype)) + array.stack())

        array = tf.TensorArray(x.dtype, iterations, element_shape=[3])
        _, array = tf.while_loop(
            lambda i, _: i < iterations, outer, [0, array], parallel_iterations=16
        )
        return array.stack()

    rank, size = rt.world().rank, rt.world().size
    total = size * (size + 1) / 2
    expected = [[total + size * i + total * j for j in range(3)] for i in range(iterations)]
    for _ in range(2):
        np.testing.assert_array_equal(compute(tf.constant(rank + 1.0)), expected)


def same_function_twice() -> None:
    """A function that is called from two places of another one."""
    rank, size = rt.world().rank, rt.world().size
    inner = tf.function(lambda x: rt.all_reduce(x))

    @tf.function
    def outer(x: Any) -> Any:
        return inner(x), inner(2 * x), inner(3 * x)

    total = size * (size + 1) / 2
    found = outer(tf.constant(rank + 1.0))
    np.testing.assert_array_equal(found, [total, 2 * total, 3 * total])


def orders(count: int) -> None:
    """Each rank starts the same calls in another order."""
    rank, size = rt.world().rank, rt.world().size
    names = np.random.default_rng(rank).permutation(count)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        started = {}
        for number in names:
            time.sleep(0.01)
            started[number] = pool.submit(
                rt.all_reduce, tf.fill([number + 1], float(number)), name=f"call {number}"
            )
        for number, each in started.items():
            np.testing.assert_array_equal(each.result(), [size * number] * (number + 1))


# --- Gradients ---


def gradients(mode: str) -> None:
    """Of the sum of all ranks' losses; each weighs its own results."""
    rank, size = rt.world().rank, rt.world().size

    def weights(of: int, rows: int) -> Any:
        return np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) * (of + 1) + of

    rows = [2 * r + 1 for r in range(size)]
    starts = np.cumsum([0, *rows])
    mine = slice(starts[rank], starts[rank + 1])
    whole = sum(weights(r, 5) for r in range(size))
    gathered = sum(weights(r, starts[-1]) for r in range(size))
    parts = [len(part) for part in np.array_split(np.zeros(5), size)]
    scattered = np.concatenate([weights(r, parts[r]) for r in range(size)])
    splits = [[(source + to) % 2 + 1 for to in range(size)] for source in range(size)]
    received = [sum(splits[source][r] for source in range(size)) for r in range(size)]
    sent = []
    for to in range(size):
        first = sum(splits[source][to] for source in range(rank))
        sent.append(weights(to, received[to])[first : first + splits[rank][to]])
    scales = {"prescale": 0.5, "postscale": 4.0}
    cases: list[tuple[int, Call, Any]] = [
        (5, rt.all_reduce, whole),
        (5, lambda x: rt.all_reduce(x, "average"), whole / size),
        (5, lambda x: rt.all_reduce(x, **scales), 2 * whole),
        (5, lambda x: tf.concat(rt.grouped_all_reduce([x[:2], x[2:]]), 0), whole),
        (rows[rank], rt.all_gather, gathered[mine]),
        (rows[rank], lambda x: rt.grouped_all_gather([x, x])[1], gathered[mine]),
        (5, lambda x: rt.broadcast(x, 1), whole if rank == 1 else 0 * whole),
        (5, rt.reduce_scatter, scattered),
        (5, lambda x: rt.reduce_scatter(x, "average", **scales), 2 * scattered / size),
        (sum(splits[rank]), lambda x: rt.all_to_all(x, splits[rank])[0], np.concatenate(sent)),
    ]

    def compute(inputs: list[Any]) -> list[Any]:
        found = []
        for x, (_, call, _) in zip(inputs, cases, strict=True):
            if mode == "graph":
                found.append(tf.gradients(loss(call(x)), x)[0])
                continue
            with tf.GradientTape() as tape:
                tape.watch(x)
                total = loss(call(x))
            found.append(tape.gradient(total, x))
        return found

    def loss(y: Any) -> Any:
        line = tf.cast(tf.range(2 * tf.shape(y)[0]), tf.float32)
        return tf.reduce_sum(y * (tf.reshape(line, [-1, 2]) * (rank + 1.0) + rank))

    arrays = [np.ones((length, 2), np.float32) for length, _, _ in cases]
    for result, (_, _, expected) in zip(run(mode, compute, arrays), cases, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def no_gradients() -> None:
    x = tf.constant([1.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = rt.all_reduce(x, "max")
    with pytest.raises(LookupError, match="'max' has no gradient"):
        tape.gradient(y, x)


# --- Errors ---


def differs(kind: str, guilty: int) -> None:
    """One rank calls something else under the same name: all get an error, and go on."""
    mine = rt.world().rank == guilty
    x = tf.zeros([4, 3])
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "shape": (lambda: rt.all_reduce(x, name="n"), lambda: rt.all_reduce(x[1:], name="n")),
        "type": (
            lambda: rt.all_reduce(x, name="n"),
            lambda: rt.all_reduce(tf.cast(x, tf.int32), name="n"),
        ),
        "operation": (
            lambda: rt.all_reduce(x, name="n"),
            lambda: rt.all_reduce(x, "max", name="n"),
        ),
        "kind": (lambda: rt.all_reduce(x, name="n"), lambda: rt.all_gather(x, name="n")),
        "root": (lambda: rt.broadcast(x, 0, name="n"), lambda: rt.broadcast(x, 1, name="n")),
        "length of rows": (
            lambda: rt.all_gather(x, name="n"),
            lambda: rt.all_gather(x[:, 1:], name="n"),
        ),
        "factor": (
            lambda: rt.all_reduce(x, name="n"),
            lambda: rt.all_reduce(x, prescale=2.0, name="n"),
        ),
    }
    right, wrong = calls[kind]
    with pytest.raises(tf.errors.FailedPreconditionError, match=f"rank.*{guilty}|{guilty}.*rank"):
        (wrong if mine else right)()
    assert rt.all_reduce(tf.constant(1)).numpy() == rt.world().size


def bad_splits(guilty: int) -> None:
    mine = rt.world().rank == guilty
    splits = [3] * rt.world().size if mine else None
    expected = tf.errors.InvalidArgumentError if mine else tf.errors.FailedPreconditionError
    with pytest.raises(expected):
        rt.all_to_all(tf.zeros([2 * rt.world().size]), splits)
    assert rt.all_reduce(tf.constant(1)).numpy() == rt.world().size


def times_out_once() -> None:
    """A step of rank 0 is cancelled while it waits; the other ranks get what it had announced."""
    rank, size = rt.world().rank, rt.world().size
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        late = rt.all_reduce(tf.random.uniform([100_000]) * 0 + rank + 1.0)
        again = rt.all_reduce(tf.fill([3], rank + 1.0))
        if rank == 0:
            short = tf.compat.v1.RunOptions(timeout_in_ms=300)
            with pytest.raises((tf.errors.DeadlineExceededError, tf.errors.CancelledError)):
                session.run(late, options=short)
            rt.communicator().barrier()
        else:
            rt.communicator().barrier()
            assert (session.run(late) == size * (size + 1) / 2).all()
        assert (session.run(again) == size * (size + 1) / 2).all()


def waits() -> None:
    tf.function(lambda: rt.all_reduce(tf.zeros([10])))()


def refusals() -> None:
    with pytest.raises(ValueError, match="'xor' is none of sum, average"):
        rt.all_reduce(1, "xor")
    with pytest.raises(NotImplementedError, match="jit_compile=False"):
        tf.function(lambda: rt.all_reduce(1), jit_compile=True)()
    with pytest.raises(tf.errors.InvalidArgumentError, match="there is no root 9"):
        rt.broadcast(1, 9)


def forked() -> None:
    """Children of a fork cannot use the groups, and end as usual."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            rt.all_reduce([1.0])
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        rt.close()
        os._exit(7)
    os.close(writer)
    with open(reader) as pipe:
        assert "forked this one" in pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert rt.all_reduce(tf.constant(1)).numpy() == rt.world().size


# --- Groups ---


def groups() -> None:
    """Several at once, with ranks in another order."""
    rank, size = rt.world().rank, rt.world().size
    rest = rt.new_group(range(1, size))
    turned = rt.new_group(range(size - 1, -1, -1))
    assert (rest.rank, rest.size) == (rank - 1 if rank else -1, size - 1)
    assert turned.ranks == tuple(range(size))[::-1]

    @tf.function
    def compute(x: Any) -> Any:
        found = [rt.all_reduce(x), rt.all_gather(x, group=turned), rt.broadcast(x, 0, group=turned)]
        return found + ([rt.all_reduce(x, group=rest)] if rest.rank >= 0 else [])

    found = compute(tf.constant(rank + 1.0))
    total = size * (size + 1) / 2
    assert found[0].numpy() == total
    np.testing.assert_array_equal(found[1], np.arange(size, 0, -1))
    assert found[2].numpy() == size
    if rank:
        assert found[3].numpy() == total - 1
    else:
        with pytest.raises(ValueError, match="not a member of group"):
            rt.all_reduce(1, group=rest)
    with pytest.raises(ValueError, match="rank 0 makes a group of"):
        rt.new_group([0] if rank == 0 else [1])


# --- Use ---


def large(count: int) -> None:
    """Large tensors lie in memory that the other ranks map."""
    rank, size = rt.world().rank, rt.world().size
    x = tf.fill([count], rank + 1.0)
    assert lies_in(shared_memory(), x)
    assert (rt.all_reduce(x).numpy() == size * (size + 1) / 2).all()


def shared_memory() -> list[str]:
    """The mappings of such memory of this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "rw-s" in line and "memfd:rdma_transport_arena" in line]


def lies_in(lines: list[str], tensor: Any) -> bool:
    array = np.asarray(memoryview(tensor))  # no copy
    address = array.__array_interface__["data"][0]
    ranges = [[int(each, 16) for each in line.split()[0].split("-")] for line in lines]
    return any(first <= address < last for first, last in ranges)


def gradients_in_place(traced: bool, steps: int) -> None:
    """Large gradients, and their sums, lie where other ranks read, or write, them from the start.

    Else they would be copied. From the fourth step on, no memory is registered.
    """
    widths = (256, 512, 1024)
    weights = [tf.Variable(tf.ones(each)) for each in pairwise(widths)]

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            for each in weights:
                x = tf.nn.relu(x @ each)
            loss = tf.reduce_mean(x)
        gradients = tape.gradient(loss, weights)
        return [*gradients, *(rt.all_reduce(each) for each in gradients)]

    take = tf.function(step) if traced else step
    before: list[str] = []
    for number in range(steps):
        found = take(tf.fill([8, widths[0]], 1.0 + number))
        mapped = shared_memory()
        assert all(lies_in(mapped, each) for each in found)
        assert number <= 3 or mapped == before
        before = mapped
        for weight, each in zip(weights, found[len(weights) :], strict=True):
            weight.assign_sub(1e-3 * each)


def late_steps(steps: int) -> None:
    """Steps whose operations are late at random, other ones on each rank."""
    rank, size = rt.world().rank, rt.world().size
    late = random.Random(rank)
    small, medium, large = (
        of_all(lambda _, length=length: (length,), "float32", length)  # type: ignore[misc]
        for length in (3, 20_000, 100_000)
    )
    uneven = of_all(lambda rank: (rank + 1, 5), "float32", 1)

    def pause(array: Any) -> Any:
        if late.random() < 0.2:
            time.sleep(late.random() * 0.003)
        return array

    @tf.function
    def step(factor: Any) -> list[Any]:
        def start(arrays: list[Any]) -> Any:
            x = tf.constant(arrays[rank]) * factor
            return tf.ensure_shape(tf.numpy_function(pause, [x], x.dtype, stateful=False), x.shape)

        return [
            *(rt.all_reduce(start(arrays)) for arrays in (small, medium, large)),
            *rt.grouped_all_reduce([start(medium), start(small)], "max"),
            rt.all_gather(start(uneven)),
            rt.broadcast(start(large), size - 1),
            rt.reduce_scatter(start(medium)),
        ]

    def expected(factor: Any) -> list[Any]:
        def of(arrays: list[Any], op: str) -> Any:
            return combined([array * factor for array in arrays], op)

        return [
            *(of(arrays, "sum") for arrays in (small, medium, large)),
            *(of(arrays, "max") for arrays in (medium, small)),
            np.concatenate(uneven) * factor,
            large[size - 1] * factor,
            np.array_split(of(medium, "sum"), size)[rank],
        ]

    factors = [np.float32(1 + each) for each in range(5)]
    all_expected = [expected(factor) for factor in factors]
    for number in range(steps):
        if late.random() < 0.1:
            time.sleep(late.random() * 0.01)
        turn = number % len(factors)
        for result, wanted in zip(step(factors[turn]), all_expected[turn], strict=True):
            same(result, wanted)


def joins(steps: int) -> int:
    """Ranks with fewer steps join."""
    rank, size = rt.world().rank, rt.world().size
    for step in range(steps + rank):
        total = rt.all_reduce(tf.constant(1.0)).numpy()
        assert total == size - max(0, step + 1 - steps)
    return int(rt.join())


def trains(steps: int) -> list[Any]:
    """A loop of one's own with Keras; return the weights, and those of one process."""
    import keras

    rank, size = rt.world().rank, rt.world().size
    random = np.random.default_rng(1)
    inputs = random.standard_normal((steps, 4 * size, 6)).astype(np.float32)
    targets = random.standard_normal((steps, 4 * size, 2)).astype(np.float32)

    def trained(part: slice, together: bool) -> list[Any]:
        keras.utils.set_random_seed(rank if together else 0)
        layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input([6]), *layers])
        optimizer = keras.optimizers.Adam(0.01)
        if together:
            for variable in model.variables:
                variable.assign(rt.broadcast(variable, 0))

        @tf.function
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            found = tape.gradient(loss, model.trainable_variables)
            if together:
                found = [rt.all_reduce(each, "average") for each in found]
            optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))

        for x, y in zip(inputs, targets, strict=True):
            step(tf.constant(x[part]), tf.constant(y[part]))
        return [variable.numpy() for variable in model.trainable_variables]

    ours = trained(slice(4 * rank, 4 * rank + 4), together=True)
    alone = trained(slice(None), together=False)
    for one, other in zip(ours, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return [each.tobytes() for each in ours]
