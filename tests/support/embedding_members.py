"""Members of a communicator with tables of embeddings, and a model of such tables in NumPy."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdma_transport.collectives import Communicator, Ranks
from rdma_transport.embeddings import FTRL, SGD, Adagrad, Adam, Table
from rdma_transport.fabric import FabricValueError
from tests.support import namespaces
from tests.support.deadlines import patient
from tests.support.members import SOON, Error, Members

OPTIMIZERS: dict[str, Any] = {
    "sgd": SGD(0.5),
    "adagrad": Adagrad(0.3),
    "adam": Adam(0.1),
    "ftrl": FTRL(0.2, l1=0.01, l2=0.02),
}
_kept: dict[str, Table] = {}


def members(size: int, fabric: str = "shm", hosts: "namespaces.Hosts | None" = None) -> Members:
    return Members(size, fabric, hosts, target=serve)


def serve(pipe: Any, ranks: Ranks, settings: dict[str, str], network: str | None) -> None:
    os.environ.update(settings)
    if network is not None:
        namespaces.enter(network)
    with Communicator.connect(ranks, timeout=patient(SOON)) as comm:
        while True:
            try:
                name, arguments = pipe.recv()
            except (EOFError, OSError):
                return
            try:
                pipe.send(globals()[name](comm, *arguments))
            except BaseException as error:
                pipe.send(Error(f"{type(error).__name__}: {error}"))


def connects(comm: Communicator) -> None:
    """Once all have connected."""


class Model:
    """A table in one process: the formulas of the optimizers, for rows that have gradients."""

    def __init__(self, weights: Any, optimizer: Any) -> None:
        self.weights, self.optimizer, self.steps = weights, optimizer, 0
        first = getattr(optimizer, "initial_accumulator", 0.0)
        self.first, self.second = np.full_like(weights, first), np.zeros_like(weights)

    def apply(self, batches: list[tuple[Any, Any]]) -> None:
        """Apply the gradients of all ranks."""
        self.steps += 1
        total = np.zeros_like(self.weights)
        for ids, gradients in batches:
            part = np.zeros_like(total)
            np.add.at(part, ids.reshape(-1), gradients.reshape(-1, total.shape[1]))
            total += part
        rows = np.unique(np.concatenate([ids.reshape(-1).astype(int) for ids, _ in batches]))
        w, g = self.weights[rows], total[rows] / len(batches)
        a, b = self.first[rows], self.second[rows]
        kind = self.optimizer
        if isinstance(kind, SGD):
            w = w - kind.learning_rate * g
        elif isinstance(kind, Adagrad):
            a = a + g**2
            w = w - kind.learning_rate * g / np.sqrt(a + kind.epsilon)
        elif isinstance(kind, Adam):
            a = kind.beta_1 * a + (1 - kind.beta_1) * g
            b = kind.beta_2 * b + (1 - kind.beta_2) * g**2
            corrected = np.sqrt(1 - kind.beta_2**self.steps) / (1 - kind.beta_1**self.steps)
            w = w - kind.learning_rate * corrected * a / (np.sqrt(b) + kind.epsilon)
        else:
            b = b + g - (np.sqrt(a + g**2) - np.sqrt(a)) / kind.learning_rate * w
            a = a + g**2
            clipped = np.clip(b, -kind.l1, kind.l1)
            w = (clipped - b) / (np.sqrt(a) / kind.learning_rate + 2 * kind.l2)
        self.weights[rows], self.first[rows], self.second[rows] = w, a, b


def batch_of(rank: int, step: int, seed: int, rows: int, dim: int, dtype: str) -> tuple[Any, Any]:
    """Ids, sometimes none or one alone, and gradients."""
    random = np.random.default_rng([rank, step, seed])
    shape = [(0,), (1,), (17,), (5, 3), (40,)][random.integers(5)]
    ids = random.integers(0, rows, shape).astype(["int32", "int64", "uint64"][random.integers(3)])
    if random.random() < 0.2:
        ids[...] = rows - 1
    return ids, random.standard_normal((*shape, dim)).astype(dtype)


def follows_the_model(
    comm: Communicator, rows: int, dim: int, dtype: str, optimizer: str, seed: int, steps: int
) -> bytes:
    kind = OPTIMIZERS[optimizer]
    arguments = {"initializer": (-1.0, 1.0), "seed": seed, "communicator": comm}
    with Table(rows, dim, dtype, optimizer=kind, name="users", **arguments) as table:
        model = Model(table.to_numpy().astype(np.float64), kind)
        for step in range(steps):
            batches = [batch_of(rank, step, seed, rows, dim, dtype) for rank in range(comm.size)]
            table.apply_gradients(*batches[comm.rank])
            model.apply(batches)
            ids = batch_of(comm.rank, step + 1, seed, rows, dim, dtype)[0]
            close = {"rtol": 1e-3, "atol": 1e-4}
            np.testing.assert_allclose(table.lookup(ids), model.weights[ids], **close)
            np.testing.assert_allclose(table.to_numpy(), model.weights, **close)
            comm.barrier()  # others still read
        return bytes(table.to_numpy().tobytes())


def rows_are_whole(comm: Communicator, dim: int, seconds: float) -> int:
    """The owner, rank 0, stores rows of equal weights; the others and itself look them up."""
    size = comm.size
    with Table(8 * size, dim, initializer=0.0, name="torn", communicator=comm) as table:
        until = time.monotonic() + seconds
        stop = threading.Event()

        def write() -> None:
            rows = np.empty((8, dim), np.float32)
            value = 0
            while not stop.is_set():
                value += 1
                rows[...] = (value + np.arange(8) / 8)[:, None]
                table._raw.store(0, 8, rows, None)

        writer = threading.Thread(target=write)
        if comm.rank == 0:
            writer.start()
        ids = np.tile(np.arange(8) * size, 50)
        looked, values = 0, set()
        while time.monotonic() < until:
            found = table.lookup(ids)
            assert (found == found[:, :1]).all()
            fractions = found[:, 0] % 1
            assert ((fractions == np.tile(np.arange(8) / 8, 50)) | (found[:, 0] == 0)).all()
            values.add(float(found[0, 0]))
            looked += 1
        comm.barrier()
        stop.set()
        if comm.rank == 0:
            writer.join()
        assert len(values) > 1
        return looked


def refusals(comm: Communicator) -> None:
    """What is wrong on one rank is an error on all, which names the table."""
    for rows, dim, dtype, optimizer, text in (
        (0, 3, "float32", "sgd", "rows must be a positive integer, not 0"),
        (3, 0, "float32", "sgd", "dim must be a positive integer, not 0"),
        (3, 2.5, "float32", "sgd", "dim must be a positive integer, not 2.5"),
        (3, 2, "int32", "sgd", "weights cannot be int32"),
        (3, 2, "float32", "rmsprop", "'rmsprop' is no optimizer"),
        (3, 2, "float32", SGD(-1.0), "learning_rate cannot be -1.0"),
    ):
        with pytest.raises(FabricValueError, match=f"table 'bad'.*{text}"):
            Table(rows, dim, dtype, optimizer=optimizer, name="bad", communicator=comm)  # type: ignore[arg-type]
    if comm.size > 1:
        with pytest.raises(FabricValueError, match=r"rank 0 makes it with .*, and rank 1 with"):
            Table(3 + (comm.rank == 1), 2, name="bad", communicator=comm)
    with Table(10, 2, name="good", communicator=comm) as table:
        assert table.lookup([]).shape == (0, 2)
        assert table.lookup(np.zeros((2, 0, 3), np.int32)).shape == (2, 0, 3, 2)
        assert table.lookup(np.uint64(7)).shape == (2,)
        for ids, text in (
            ([10], "has no row 10"),
            ([3, -1], "has no row -1"),
            (np.array([2**63], np.uint64), "has no row 9223372036854775808"),
            (np.array([1.0]), "ids are of float64"),
            (np.array(["a"]), "ids are of <U1"),
        ):
            with pytest.raises(FabricValueError, match=f"table 'good'.*{text}"):
                table.lookup(ids)
        with pytest.raises(FabricValueError, match="table 'good': the output must be"):
            table.lookup([1], out=np.empty((2, 2), np.float32))
        wrong = comm.rank == comm.size - 1
        for ids, gradients, text in (
            ([1, 2], np.ones((2, 3)), r"gradients of shape \(2, 3\)"),
            ([11], np.ones((1, 2)), "has no row 11"),
        ):
            given = (ids, gradients) if wrong else ([1], np.ones((1, 2)))
            with pytest.raises(FabricValueError, match=f"table 'good'.*{text if wrong else ''}"):
                table.apply_gradients(*given)
        before = table.to_numpy()
        comm.barrier()
        table.apply_gradients([1], np.ones((1, 2)))  # it goes on
        assert (table.to_numpy() != before).any(1).nonzero()[0].tolist() == [1]
        comm.barrier()
    with pytest.raises(RuntimeError, match="closed"):
        table.lookup([1])


def looks_up_forever(comm: Communicator) -> None:
    table = Table(1000, 8, name="mortal", communicator=comm)
    while True:
        table.lookup(np.arange(1000))


def applies_forever(comm: Communicator) -> None:
    table = Table(1000, 8, name="mortal", communicator=comm)
    while True:
        table.apply_gradients(np.arange(100), np.ones((100, 8)))


def saves(comm: Communicator, folder: Path, optimizer: str) -> bytes:
    """Train, save, and train on."""
    table = Table(101, 3, optimizer=OPTIMIZERS[optimizer], name="saved", communicator=comm)
    for step in range(3):
        table.apply_gradients(*batch_of(0, step, 1, 101, 3, "float32"))
    table.save(folder)
    return _go_on(table)


def restores(comm: Communicator, folder: Path, optimizer: str) -> bytes:
    made = Table(101, 3, optimizer=OPTIMIZERS[optimizer], name="again", seed=7, communicator=comm)
    made.restore(folder)
    found = _go_on(made)
    with pytest.raises(FabricValueError, match=r"'small'.*has 101 rows of 3 float32"):
        Table(11, 3, name="small", communicator=comm).restore(folder)
    with pytest.raises(FabricValueError, match="has no saved table"):
        made.restore(folder / "nothing")
    return found


def _go_on(table: Table) -> bytes:
    """All ranks have the same gradients: their mean does not depend on their number."""
    for step in range(3):
        table.apply_gradients(*batch_of(0, step, 2, 101, 3, "float32"))
    return bytes(np.round(table.to_numpy(), 4).tobytes())


def initial_rows(comm: Communicator) -> list[bytes]:
    """They do not depend on the number of ranks."""
    drawn = Table(57, 5, "float64", (-2.0, 3.0), seed=4, communicator=comm)
    given = np.arange(57.0 * 5).reshape(57, 5)
    made = Table(57, 5, "float64", lambda ids: given[ids], communicator=comm)
    np.testing.assert_array_equal(made.to_numpy(), given)
    weights = drawn.to_numpy()
    assert -2 <= weights.min() < -1.9
    assert 2.9 < weights.max() < 3
    comm.barrier()
    return [weights.tobytes()]
