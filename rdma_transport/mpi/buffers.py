"""How arguments of upper-case calls name elements in memory: as in mpi4py."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rdma_transport.mpi.constants import NotOfferedError
from rdma_transport.mpi.datatypes import Datatype, named_bfloat16, type_of


@dataclass(frozen=True)
class Elements:
    """``count`` elements of each of ``blocks`` ranks, in the order of the memory of a buffer.

    ``memory`` has all their bytes.
    """

    memory: Any
    count: int
    datatype: Datatype

    @property
    def numbers(self) -> Any:
        """The elements as an array of numbers, for reductions; raise ``NotImplementedError``."""
        if not self.datatype._reducible:
            raise NotOfferedError(f"a reduction of {self.datatype!r}")
        return self.memory.view(self.datatype._dtype)


def elements(spec: Any, writable: bool, blocks: int = 1) -> Elements:
    """Return what an argument names: a buffer, or a list of one and count, displacement and type.

    A count is that of one block; without one, the buffer is divided into `blocks` equal ones.
    Raise as mpi4py does, ``NotImplementedError`` for types that are missing, and ``ValueError`` if
    the buffer is too small.
    """
    buffer, count, displacement, given = _parts(spec, pairs=(list, tuple))
    memory, datatype = _memory(buffer, writable, given)
    size = datatype.Get_size()
    start = 0 if displacement is None else operator.index(displacement)
    if start < 0:
        raise ValueError(f"message: negative displacement {start}")
    if start * size > memory.size:
        raise ValueError(
            f"message: displacement {start} out of bounds, number of datatype entries "
            f"{memory.size // size}"
        )
    memory = memory[start * size :]
    if count is None:
        count = _whole(memory, size)
        if count % blocks:
            raise ValueError(
                f"message: cannot infer count, number of entries {count} is not a multiple of "
                f"required number of blocks {blocks}"
            )
        count //= blocks
    count = operator.index(count)
    if count < 0:
        raise ValueError(f"message: negative count {count}")
    return Elements(_some(memory, 0, count * size * blocks), count, datatype)


def parts(spec: Any, writable: bool, blocks: int) -> list[Any]:
    """Return the bytes of each rank's part of a buffer, by mpi4py's counts and displacements."""
    buffer, counts, displacements, given = _parts(spec, pairs=(tuple,))
    memory, datatype = _memory(buffer, writable, given)
    size = datatype.Get_size()
    if counts is None:
        whole = _whole(memory, size)
        counts = [whole // blocks + (whole % blocks > i) for i in range(blocks)]
    numbers = counts_of(counts, blocks)
    if displacements is None:
        displacements = [sum(numbers[:i]) for i in range(blocks)]
    starts = _numbers(displacements, blocks, "displacements", lambda stride, i: stride * i)
    return [
        _some(memory, start * size, number * size)
        for start, number in zip(starts, numbers, strict=True)
    ]


def _parts(spec: Any, pairs: tuple[type, ...]) -> tuple[Any, Any, Any, Any]:
    """Return buffer, counts, displacements and type; `pairs` name counts and displacements."""
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ValueError("message: expecting 2 to 4 items")
    buffer, *rest = spec
    given: Any = None
    if len(rest) > 1 or isinstance(rest[0], Datatype | str):
        given = rest.pop()
    counts: Any = rest[0] if rest else None
    displacements = rest[1] if len(rest) > 1 else None
    if len(rest) == 1 and isinstance(counts, pairs):
        counts, displacements = rest[0]
    return buffer, counts, displacements, given


def _memory(buffer: Any, writable: bool, given: Any) -> tuple[Any, Datatype]:
    """Return the bytes of a buffer and the type of its elements, `given` or its own."""
    if buffer is None:
        if given is None:
            raise TypeError("message: expecting buffer or list/tuple")
        return np.empty(0, np.uint8), type_of(given)
    if isinstance(buffer, np.ndarray) and buffer.dtype.name == "bfloat16":  # has no protocol
        memory, _ = _flat(buffer.view(np.uint16), writable)
        return memory, named_bfloat16(buffer.dtype) if given is None else type_of(given)
    try:
        view = memoryview(buffer)
    except TypeError:
        if hasattr(buffer, "__dlpack__") or hasattr(buffer, "__cuda_array_interface__"):
            raise NotOfferedError(
                "buffers by DLPack or the CUDA array interface", "give a NumPy array"
            ) from None
        raise TypeError("message: expecting buffer or list/tuple") from None
    memory, own = _flat(view, writable)
    if given is None and own.startswith((">", "!")):
        raise BufferError(f"format string {own!r} with non-native byte order")
    return memory, type_of(own.lstrip("@<") if given is None else given)


def _flat(buffer: Any, writable: bool) -> tuple[Any, str]:
    """Return the bytes of a contiguous buffer, in the order of memory, and its format."""
    view = memoryview(buffer)
    if writable and view.readonly:
        raise BufferError("Object is not writable.")
    form = view.format or "B"
    if "O" in form:
        raise ValueError("arrays of objects are not sent as buffers; lower-case calls send objects")
    if not view.c_contiguous:
        if not view.f_contiguous:
            raise BufferError("buffer is not contiguous; pass a copy of it")
        transposed: Any = np.asarray(view).T
        view = memoryview(transposed)
    memory = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
    return memory, form


def _whole(memory: Any, size: int) -> int:
    if memory.size % size:
        raise ValueError(
            f"message: cannot infer count, buffer length {memory.size} is not a multiple of "
            f"datatype extent {size}"
        )
    return int(memory.size // size)


def _some(memory: Any, start: int, length: int) -> Any:
    if start < 0 or length < 0 or start + length > memory.size:
        raise ValueError(
            f"message: bytes {start} to {start + length} are not in the buffer of {memory.size}"
        )
    return memory[start : start + length]


def _numbers(given: Any, blocks: int, what: str, one: Any) -> list[int]:
    """Return one number for each rank; `one` makes them of a single number."""
    try:
        single = operator.index(given)
    except TypeError:
        pass
    else:
        return [one(single, i) for i in range(blocks)]
    found = [operator.index(each) for each in given]
    if len(found) != blocks:
        raise ValueError(f"message: expecting {blocks} {what}, got {len(found)}")
    return found


def counts_of(given: Sequence[int], blocks: int) -> list[int]:
    """Return one count for each rank."""
    return _numbers(given, blocks, "counts", lambda count, _: count)
