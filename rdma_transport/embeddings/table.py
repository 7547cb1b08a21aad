"""Tables of embeddings whose rows are divided among ranks."""

import functools
import itertools
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rdma_transport import _embeddings as native
from rdma_transport._collectives import start_timeout
from rdma_transport._fabric import FabricError, FabricValueError
from rdma_transport.collectives import Communicator
from rdma_transport.embeddings import files
from rdma_transport.embeddings.optimizers import Optimizer, described, optimizer_of

_CHUNK = 1 << 16  # rows that an initializer makes at once
_MOST_ROWS = 1 << 62

_numbers = itertools.count()
# Tables that were not closed by all ranks: others may read them as long as there are connections.
_open: "weakref.WeakKeyDictionary[Communicator, list[native.RawTable]]"
_open = weakref.WeakKeyDictionary()
_own: list[Communicator] = []  # what tables without a communicator connected


class Table:
    """`rows` vectors of `dim` weights. Row r lies in the memory of rank r % size, its owner.

    All ranks must make a table together, with equal arguments, and call ``apply_gradients()``,
    ``save()``, and ``restore()`` together. ``lookup()`` concerns no other rank: it reads rows from
    the memory of their owners.

    `dtype` is float32 or float64. `initializer` is a pair ``(low, high)`` between which weights are
    drawn, one number for all weights, or a function from an array of ids to an array of shape
    ``(ids, dim)``, which the owner of the rows calls. Weights that are drawn depend on `seed`, not
    on the number of ranks. `optimizer` is ``"sgd"``, ``"adagrad"``, ``"adam"``, ``"ftrl"``, or an
    object of ``rdma_transport.embeddings.optimizers``. `name` appears in messages. `communicator`
    is one of the ranks; None means that of all ranks, of ``rdma_transport.tensorflow`` if that is
    imported.

    Errors are those of ``rdma_transport.fabric``, and name the table. After one that names a rank,
    the table cannot be used further.

    Thread-safe, except that ranks must agree on the order of calls that they make together.
    """

    def __init__(
        self,
        rows: int,
        dim: int,
        dtype: Any = "float32",
        initializer: Any = (-0.05, 0.05),
        optimizer: Any = "sgd",
        name: str = "table",
        *,
        seed: int = 0,
        communicator: Communicator | None = None,
    ) -> None:
        self.name = name
        self.communicator = _communicator() if communicator is None else communicator
        agreed = self._agreed(lambda: _checked(rows, dim, dtype, optimizer))
        self.rows, self.dim, self.dtype, self.optimizer = agreed
        self.number = next(_numbers)
        timeout = self.communicator.timeout
        self._timeout = start_timeout() if timeout is None else timeout
        self._raw = self._together(self._opened)
        keys = self.communicator.all_gather_object(self._raw.key())
        self._together(lambda: self._raw.attach(keys, self._timeout))
        self._together(lambda: self._initialize(initializer, seed))
        self._raw.publish(self.number)
        _open.setdefault(self.communicator, []).append(self._raw)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and weights of each."""
        return self.rows, self.dim

    @property
    def learning_rate(self) -> float:
        """Of this rank's rows. All ranks must set the same."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._raw.set_learning_rate(float(rate))
        self._learning_rate = float(rate)

    def lookup(self, ids: Any, out: Any = None, **arguments: Any) -> Any:
        """Return the rows of `ids`, integers of any shape: an array of shape ``(*ids, dim)``.

        `out` is such an array; None: a new one. Tensors go to
        ``rdma_transport.embeddings.tensorflow.lookup()``, with its arguments. Raise
        ``FabricValueError`` if an id is no row, ``FabricConnectionError`` if an owner is gone.
        """
        if _is_tensor(ids):
            from rdma_transport.embeddings.tensorflow import lookup

            return lookup(self, ids, **arguments)
        if arguments:
            raise TypeError(f"lookup() of an array takes no {', '.join(arguments)}")
        given, kind = self._ids(ids)
        result = np.empty((*given.shape, self.dim), self.dtype) if out is None else out
        if not isinstance(result, np.ndarray) or not (
            result.dtype == self.dtype
            and result.shape == (*given.shape, self.dim)
            and result.flags.c_contiguous
            and result.flags.writeable
        ):
            raise FabricValueError(
                f"table '{self.name}': the output must be a C-contiguous array of {self.dtype} "
                f"and of shape {(*given.shape, self.dim)}"
            )
        self._raw.lookup(kind, given, given.size, _bytes(result), self.communicator.timeout)
        return result

    def apply_gradients(self, ids: Any, gradients: Any) -> Any:
        """Update rows by their gradients, an array of shape ``(*ids, dim)``, on all ranks.

        The gradients of a row are summed, those of all ranks in the order of ranks, and divided by
        the number of ranks. After the call, all ranks look up the new rows. Each call counts as one
        step of the optimizer, also for rows without gradients. Of tensors, return the operation.

        Raise ``FabricValueError`` on all ranks if the arguments of one are wrong.
        """
        if _is_tensor(ids):
            from rdma_transport.embeddings.tensorflow import apply_gradients

            return apply_gradients(self, ids, gradients)
        try:
            given, kind = self._ids(ids)
            values = np.ascontiguousarray(gradients, self.dtype)
            if values.shape != (*given.shape, self.dim):
                raise FabricValueError(
                    f"table '{self.name}': gradients of shape {values.shape} for ids of shape "
                    f"{given.shape}; it must be {(*given.shape, self.dim)}"
                )
            rows, sums, counts = self._raw.sum(kind, given, given.size, _bytes(values))
        except Exception:
            self.communicator.reject()
            raise
        return self._named(lambda: self._exchanged(rows, sums, counts))

    @functools.cached_property
    def anchor(self) -> Any:
        """A variable of TensorFlow through which gradients find the table; see there."""
        import tensorflow

        with tensorflow.init_scope():
            return tensorflow.Variable(0.0, name="embedding_anchor")

    def to_numpy(self) -> Any:
        """Return all rows, an array of shape ``(rows, dim)``."""
        return self.lookup(np.arange(self.rows))

    def save(self, folder: str | Path) -> None:
        """Save weights, slots and steps to a folder that all ranks reach, each rank its rows."""
        self._together(lambda: files.save(self, self._raw, Path(folder)))

    def restore(self, folder: str | Path) -> None:
        """Restore what ``save()`` saved, by any number of ranks.

        Slots are restored if the optimizers are of one kind. Raise ``FabricValueError`` on all
        ranks if the table there has other rows or another type.
        """
        self._together(lambda: files.restore(self, self._raw, Path(folder)))

    def close(self) -> None:
        """Release the memory, once all ranks have called this. Idempotent.

        A table that is not closed keeps its memory as long as its communicator.
        """
        kept = _open.get(self.communicator, [])
        if self._raw not in kept:
            return
        self._named(self.communicator.barrier)
        kept.remove(self._raw)
        self._raw.close()

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        if raised is None:  # otherwise the other ranks may not close it
            self.close()

    def __repr__(self) -> str:
        return (
            f"<Table '{self.name}' of {self.rows} rows of {self.dim} {self.dtype}, "
            f"{type(self.optimizer).__name__}, {self.communicator.size} owners>"
        )

    # --- Internals ---

    def _opened(self) -> native.RawTable:
        self._learning_rate = self.optimizer.learning_rate
        types = native.TYPES[self.dtype.name]
        optimizer = described(self.optimizer)
        group = self.communicator._raw
        return native.RawTable(group, self.name, self.rows, self.dim, types, optimizer)

    def _initialize(self, initializer: Any, seed: int) -> None:
        if isinstance(initializer, tuple):
            low, high = initializer
            self._raw.draw(float(low), float(high), seed)
            return
        count, rank, size = self._raw.local_rows(), self.communicator.rank, self.communicator.size
        for first in range(0, count, _CHUNK):
            ids = np.arange(first, min(first + _CHUNK, count)) * size + rank
            made = initializer(ids) if callable(initializer) else initializer
            values = np.array(np.broadcast_to(made, (len(ids), self.dim)), self.dtype)
            self._raw.store(first, len(ids), values, None)

    def _exchanged(self, rows: bytes, sums: bytes, counts: list[int]) -> None:
        """Send gradients to the owners of their rows, and apply what this rank receives."""
        comm = self.communicator
        theirs = comm.all_to_all(np.array(counts, np.int64))
        length = 8 + self.dim * self.dtype.itemsize
        sent_rows = np.split(np.frombuffer(rows, np.uint8), 8 * np.cumsum(counts)[:-1])
        sent_sums = np.split(np.frombuffer(sums, np.uint8), (length - 8) * np.cumsum(counts)[:-1])
        total = int(theirs.sum())
        got_rows = np.empty(8 * total, np.uint8)
        got_sums = np.empty((length - 8) * total, np.uint8)
        ends = np.cumsum(theirs)[:-1]
        comm.exchange(sent_rows, np.split(got_rows, 8 * ends))
        comm.exchange(sent_sums, np.split(got_sums, (length - 8) * ends))
        self._raw.apply(got_rows, total, got_sums)
        comm.barrier()

    def _ids(self, ids: Any) -> tuple[Any, int]:
        given = np.asarray(ids)
        if given.size == 0 and given.dtype == np.float64:  # an empty list
            given = given.astype(np.int64)
        kind = native.ID_TYPES.get(given.dtype.name)
        if kind is None or not given.dtype.isnative:
            raise FabricValueError(
                f"table '{self.name}': ids are of {given.dtype}; the types are "
                f"{', '.join(native.ID_TYPES)}"
            )
        return np.asarray(given, order="C"), kind

    def _named(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except FabricError as error:
            text = str(error)
            if f"table '{self.name}'" in text:
                raise
            raise type(error)(f"table '{self.name}': {text}") from None

    def _together(self, call: Callable[[], Any]) -> Any:
        """Call something on all ranks; if one raises, all raise."""
        result, error = None, None
        try:
            result = self._named(call)
        except Exception as raised:
            error = raised
        of_all = self._named(lambda: self.communicator.all_gather_object(error and str(error)))
        if error:
            raise error
        for rank, text in enumerate(of_all):
            if text:
                raise FabricValueError(f"table '{self.name}': rank {rank} failed: {text}")
        return result

    def _agreed(self, check: Callable[[], Any]) -> Any:
        """Return the checked arguments; raise ``FabricValueError`` if ranks differ."""
        arguments = self._together(check)
        of_all = self.communicator.all_gather_object((self.name, *map(str, arguments)))
        for rank, theirs in enumerate(of_all):
            if theirs != of_all[0]:
                raise FabricValueError(
                    f"table '{self.name}': rank 0 makes it with {of_all[0]}, and rank {rank} with "
                    f"{theirs}; the arguments must be equal"
                )
        return arguments


def _checked(rows: Any, dim: Any, dtype: Any, optimizer: Any) -> tuple[int, int, Any, Optimizer]:
    for value, what in ((rows, "rows"), (dim, "dim")):
        if not isinstance(value, int | np.integer) or not 0 < value < _MOST_ROWS:
            raise FabricValueError(f"{what} must be a positive integer, not {value!r}")
    kind = np.dtype(dtype)
    if kind.name not in native.TYPES or not kind.isnative:
        raise FabricValueError(f"weights cannot be {kind}; the types are {', '.join(native.TYPES)}")
    return int(rows), int(dim), kind, optimizer_of(optimizer)


def _bytes(array: Any) -> Any:
    return array.reshape(-1).view(np.uint8)


def _is_tensor(ids: Any) -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and bool(tensorflow.is_tensor(ids))


def _communicator() -> Communicator:
    """Return that of all ranks."""
    tensorflow = sys.modules.get("rdma_transport.tensorflow")
    if tensorflow is not None:
        found: Communicator = tensorflow.communicator()
        return found
    if not _own:
        _own.append(Communicator.connect())
    return _own[0]
