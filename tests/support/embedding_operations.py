"""Members that look up tables of embeddings by operations of TensorFlow, and what they run."""

import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.collectives import Communicator, Ranks
from rdma_transport.embeddings import Adagrad, Adam, Table
from tests.support.deadlines import patient
from tests.support.members import SOON, Error, Members

ROWS, DIM = 50, 6
WIDTH = 7  # ids of an example


def members(size: int, fabric: str) -> Members:
    return Members(size, fabric, target=serve)


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


def lookups(graph: bool) -> None:
    """They are those of stock TensorFlow in a variable."""
    with Table(ROWS, DIM, name="users") as table:
        weights = tf.constant(table.to_numpy())
        run: Any = tf.function if graph else lambda function: function
        random = np.random.default_rng(rt.world().rank)
        ids = random.integers(0, ROWS, (4, 3))
        factors = tf.constant(random.random((4, 3)), tf.float32)
        for dtype in (tf.int32, tf.int64, tf.uint64):
            found = run(table.lookup)(tf.constant(ids, dtype))
            np.testing.assert_array_equal(found, tf.gather(weights, ids))
        assert run(table.lookup)(tf.zeros([0], tf.int64)).shape == (0, DIM)
        ragged = tf.RaggedTensor.from_row_lengths(tf.constant(ids.reshape(-1)), [3, 2, 7])
        scales = ragged.with_values(tf.reshape(factors, [-1]))
        plain = run(table.lookup)(ragged)
        np.testing.assert_array_equal(plain.flat_values, tf.gather(weights, ids.reshape(-1)))
        for combiner in ("sum", "mean", "sqrtn"):
            for given in (None, scales):
                expected = tf.nn.embedding_lookup_sparse(
                    weights,
                    ragged.to_sparse(),
                    None if given is None else given.to_sparse(),
                    combiner=combiner,
                )

                def look(ids: Any, given: Any = given, combiner: str = combiner) -> Any:
                    return table.lookup(ids, combiner=combiner, weights=given)

                close = {"rtol": 1e-5, "atol": 1e-6}
                np.testing.assert_allclose(run(look)(ragged), expected, **close)
                if given is None:
                    np.testing.assert_allclose(run(look)(ragged.to_sparse()), expected, **close)
        dense = run(lambda: table.lookup(tf.constant(ids), combiner="mean", weights=factors))()
        rows = tf.gather(weights, ids)
        wanted = tf.reduce_sum(rows * factors[..., None], 1) / tf.reduce_sum(factors, 1)[:, None]
        np.testing.assert_allclose(dense, wanted, rtol=1e-5)


def refusals() -> None:
    with Table(ROWS, DIM, name="users") as table:
        with pytest.raises(tf.errors.InvalidArgumentError, match="'users' has no row 50"):
            table.lookup(tf.constant([50]))
        with pytest.raises(TypeError, match="'users': ids are of float32"):
            table.lookup(tf.constant([1.0]))
        with pytest.raises(ValueError, match="'users': the combiner 'max' is none of sum"):
            table.lookup(tf.constant([[1]]), combiner="max")
        with pytest.raises(ValueError, match="'users': weights and sparse ids need a combiner"):
            table.lookup(tf.sparse.from_dense([[1]]))
        with pytest.raises(NotImplementedError, match="jit_compile=False"):
            tf.function(lambda: table.lookup(tf.constant([1])), jit_compile=True)()
        with pytest.raises(tf.errors.InvalidArgumentError, match="'users': gradients of shape"):
            table.apply_gradients(tf.constant([1, 2]), tf.zeros([3, DIM]))
    with pytest.raises(tf.errors.FailedPreconditionError, match="is closed"):
        table.lookup(tf.constant([1]))
    alone = Communicator.connect(Ranks())
    with pytest.raises(ValueError, match="'mine' was made with a communicator of its own"):
        Table(3, 2, name="mine", communicator=alone).lookup(tf.constant([1]))


def trains(optimizer: str, how: str, steps: int) -> bytes:
    """Ranks train as one process does on the batches of all, whose table is a variable."""
    import keras

    from rdma_transport.embeddings.keras import Embedding

    rank, size = rt.world().rank, rt.world().size
    random = np.random.default_rng(5)
    ids = random.integers(0, ROWS, (steps, 4 * size, WIDTH)).astype(np.int64)
    targets = random.standard_normal((steps, 4 * size, 1)).astype(np.float32)
    own = Adam(0.05) if optimizer == "adam" else Adagrad(0.1)
    kinds: dict[str, Any] = {"adam": keras.optimizers.Adam, "adagrad": keras.optimizers.Adagrad}
    if optimizer == "adam":  # Keras decays the moments of all rows, so all have gradients
        ids[...] = np.resize(np.arange(ROWS), ids.shape)
    table = Table(ROWS, DIM, optimizer=own, name=f"{optimizer} {how}")
    before = table.to_numpy()
    if how == "fit":
        model = keras.Sequential(
            [
                keras.Input((WIDTH,), dtype="int64"),
                Embedding(table, "mean"),
                keras.layers.Dense(1, kernel_initializer="ones", trainable=False),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=False)
        part = slice(4 * rank, 4 * rank + 4)
        x, y = ids[:, part].reshape(-1, WIDTH), targets[:, part].reshape(-1, 1)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    else:

        @tf.function
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                rows = table.lookup(x, combiner="mean")
                loss = tf.reduce_mean((tf.reduce_sum(rows, 1, keepdims=True) - y) ** 2)
            tape.gradient(loss, table.anchor)

        for x, y in zip(ids, targets, strict=True):
            part = slice(4 * rank, 4 * rank + 4)
            step(tf.constant(x[part]), tf.constant(y[part]))

    alone = keras.Variable(before)
    theirs = kinds[optimizer](own.learning_rate)
    theirs.build([alone])
    for x, y in zip(ids, targets, strict=True):
        with tf.GradientTape() as tape:
            rows = tf.reduce_mean(tf.nn.embedding_lookup(alone.value, x), 1)
            loss = tf.reduce_mean((tf.reduce_sum(rows, 1, keepdims=True) - y) ** 2)
        # Of a row that is there twice, Keras squares each gradient, unless they are summed before.
        theirs.apply([tf.convert_to_tensor(tape.gradient(loss, alone.value))])
    found = table.to_numpy()
    assert np.abs(found - before).max() > 0.01
    np.testing.assert_allclose(found, alone.numpy(), rtol=2e-4, atol=2e-5)
    return bytes(found.tobytes())


def looks_up_forever() -> None:
    table = Table(1000, 8, name="mortal")
    step = tf.function(lambda: table.lookup(tf.range(1000)))
    while True:
        step()


def trains_forever() -> None:
    table = Table(1000, 8, name="mortal")

    @tf.function
    def step() -> None:
        table.apply_gradients(tf.range(100), tf.ones([100, 8]))

    while True:
        step()


def connects() -> None:
    """Once all have connected."""
