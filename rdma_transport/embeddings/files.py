"""Tables in files: each owner saves its rows, and any number of owners restore them.

A folder has ``table.json``, and for each owner ``weights-RANK.npy`` and ``slots-RANK.npy``, which
NumPy reads. Row i of the files of rank R of N is row i * N + R of the table.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from rdma_transport import _embeddings as native
from rdma_transport._fabric import FabricValueError

_FORMAT = 1
_CHUNK = 1 << 16  # rows


def save(table: Any, raw: native.RawTable, folder: Path) -> None:
    """Save the rows of this rank. `folder` is complete once all ranks have done this."""
    folder.mkdir(parents=True, exist_ok=True)
    rank, size = table.communicator.rank, table.communicator.size
    head = {
        "format": _FORMAT,
        "rows": table.rows,
        "dim": table.dim,
        "dtype": table.dtype.name,
        "optimizer": type(table.optimizer).__name__,
        "slots": _slots(table, raw),
        "steps": raw.steps(),
        "ranks": size,
    }
    rows = raw.local_rows()
    shape = (rows, table.dim)
    weights = _new(folder / f"weights-{rank}.npy", table.dtype, shape)
    slots = _new(folder / f"slots-{rank}.npy", table.dtype, (rows, head["slots"], table.dim))
    for first in range(0, rows, _CHUNK):
        count = min(_CHUNK, rows - first)
        part = np.empty((count, table.dim), table.dtype)
        more = np.empty((count, head["slots"], table.dim), table.dtype)
        raw.load(first, count, part, more)
        weights[first : first + count], slots[first : first + count] = part, more
    for each in (weights, slots):
        if isinstance(each, np.memmap):
            each.flush()
    if rank == 0:
        written = folder / "table.json.new"
        written.write_text(json.dumps(head))
        written.replace(folder / "table.json")


def restore(table: Any, raw: native.RawTable, folder: Path) -> None:
    """Restore the rows of this rank."""
    try:
        head = json.loads((folder / "table.json").read_text())
    except (OSError, ValueError) as error:
        raise FabricValueError(f"{folder} has no saved table: {error}") from None
    if head.get("format") != _FORMAT:
        raise FabricValueError(f"{folder} was saved by another version: {head.get('format')}")
    saved = (head["rows"], head["dim"], head["dtype"])
    own = (table.rows, table.dim, table.dtype.name)
    if saved != own:
        raise FabricValueError(
            f"{folder} has {saved[0]} rows of {saved[1]} {saved[2]}, and the table "
            f"{own[0]} rows of {own[1]} {own[2]}"
        )
    same = head["optimizer"] == type(table.optimizer).__name__
    others = head["ranks"]
    weights = [np.load(folder / f"weights-{each}.npy", mmap_mode="r") for each in range(others)]
    slots = [np.load(folder / f"slots-{each}.npy", mmap_mode="r") for each in range(others)]
    rank, size, rows = table.communicator.rank, table.communicator.size, raw.local_rows()
    for first in range(0, rows, _CHUNK):
        ids = np.arange(first, min(first + _CHUNK, rows)) * size + rank
        part = np.empty((len(ids), table.dim), table.dtype)
        more = np.empty((len(ids), head["slots"], table.dim), table.dtype)
        for owner in range(others):
            mine = ids % others == owner
            part[mine] = weights[owner][ids[mine] // others]
            more[mine] = slots[owner][ids[mine] // others]
        raw.store(first, len(ids), part, more if same else None)
    raw.set_steps(head["steps"] if same else 0)


def _slots(table: Any, raw: native.RawTable) -> int:
    """Return the number of values that the optimizer keeps for each weight."""
    return int(raw.slot_bytes() // (table.dim * table.dtype.itemsize))


def _new(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return an array in a new file."""
    if 0 in shape:  # which cannot be mapped
        np.save(path, np.empty(shape, dtype))
        return np.empty(shape, dtype)
    return np.lib.format.open_memmap(path, "w+", dtype, shape)
