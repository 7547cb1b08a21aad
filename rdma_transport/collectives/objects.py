"""Python objects through collectives, by pickle. Unpickle only what trusted ranks send."""

import pickle
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from rdma_transport._fabric import FabricValueError

_HEADER = struct.Struct("<Q")
_FIRST = 1024  # bytes of the first block: length, and the beginning of the pickle


class ByteCollectives(Protocol):
    """The calls of a communicator that objects need."""

    rank: int
    size: int

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """See ``Communicator``."""

    def all_gather(self, array: Any) -> Any:
        """See ``Communicator``."""

    def all_to_all(self, array: Any) -> Any:
        """See ``Communicator``."""

    def exchange(self, parts: Sequence[Any], outs: Sequence[Any]) -> None:
        """See ``Communicator``."""

    def reject(self) -> None:
        """See ``Communicator``."""


def broadcast(group: ByteCollectives, value: Any, root: int) -> Any:
    """Return the root's object on all ranks."""
    mine = group.rank == root
    data = _pickled(group, value) if mine else b""
    block = _first_block(data)
    group.broadcast(block, root)
    length = _HEADER.unpack_from(block)[0]
    inline = _FIRST - _HEADER.size
    if length > inline:
        rest = np.frombuffer(data, np.uint8)[inline:].copy() if mine else None
        rest = np.empty(length - inline, np.uint8) if rest is None else rest
        group.broadcast(rest, root)
        data = block[_HEADER.size :].tobytes() + rest.tobytes()
    else:
        data = block[_HEADER.size : _HEADER.size + length].tobytes()
    return value if mine else pickle.loads(data)


def all_gather(group: ByteCollectives, value: Any) -> list[Any]:
    """Return the objects of all ranks, in the order of ranks."""
    data = _pickled(group, value)
    blocks = group.all_gather(_first_block(data)).reshape(group.size, _FIRST)
    lengths = [_HEADER.unpack_from(block)[0] for block in blocks]
    inline = _FIRST - _HEADER.size
    parts = [block[_HEADER.size :].tobytes() for block in blocks]
    longest = max(lengths) - inline
    if longest > 0:
        rest = np.zeros(longest, np.uint8)
        mine = np.frombuffer(data, np.uint8)[inline:]
        rest[: mine.size] = mine
        rests = group.all_gather(rest).reshape(group.size, longest)
        parts = [part + rest.tobytes() for part, rest in zip(parts, rests, strict=True)]
    return [
        value if rank == group.rank else pickle.loads(part[:length])
        for rank, (part, length) in enumerate(zip(parts, lengths, strict=True))
    ]


def gather(group: ByteCollectives, value: Any, root: int) -> list[Any] | None:
    """Return the objects of all ranks at the root."""
    data = _pickled(group, value)
    lengths = group.all_gather(np.array([len(data)], np.int64)).reshape(-1)
    mine = group.rank == root
    parts = [data if rank == root and not mine else b"" for rank in range(group.size)]
    outs = [
        bytearray(length if mine and rank != root else 0) for rank, length in enumerate(lengths)
    ]
    group.exchange(parts, outs)
    if not mine:
        return None
    return [value if rank == root else pickle.loads(out) for rank, out in enumerate(outs)]


def scatter(group: ByteCollectives, values: Sequence[Any] | None, root: int) -> Any:
    """Return the object of the root for this rank."""
    mine = group.rank == root
    parts = [b""] * group.size
    if mine:
        parts = _pickled_each(group, values)
        parts[root] = b""
    lengths = np.array([len(part) for part in parts], np.int64)
    group.broadcast(lengths, root)
    outs = [bytearray(lengths[group.rank] if rank == root else 0) for rank in range(group.size)]
    group.exchange(parts, outs)
    return values[root] if mine and values is not None else pickle.loads(outs[root])


def all_to_all(group: ByteCollectives, values: Sequence[Any]) -> list[Any]:
    """Return what the ranks send this one."""
    parts = _pickled_each(group, values)
    parts[group.rank] = b""
    lengths = group.all_to_all(np.array([len(part) for part in parts], np.int64))
    outs = [bytearray(length) for length in lengths]
    group.exchange(parts, outs)
    return [
        values[rank] if rank == group.rank else pickle.loads(out) for rank, out in enumerate(outs)
    ]


def _pickled_each(group: ByteCollectives, values: Sequence[Any] | None) -> list[bytes]:
    if values is None or len(values) != group.size:
        group.reject()
        raise FabricValueError(f"give a list of {group.size} objects, one for each rank")
    return [_pickled(group, value) for value in values]


def _pickled(group: ByteCollectives, value: Any) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except BaseException:
        group.reject()  # the other ranks must not wait for this one
        raise


def _first_block(data: bytes) -> Any:
    block = np.zeros(_FIRST, np.uint8)
    head = _HEADER.pack(len(data)) + data[: _FIRST - _HEADER.size]
    block[: len(head)] = np.frombuffer(head, np.uint8)
    return block
