"""Datatypes, and how arguments of upper-case calls name arrays."""

from typing import Any

import numpy as np

from rdma_transport.mpi.constants import NotOfferedError


class Datatype:
    """A type of elements. Types that a program makes are missing."""

    def __init__(self, name: str, dtype: Any) -> None:
        self.name, self.dtype = name, np.dtype(dtype)

    def Get_size(self) -> int:
        """Return the bytes of one element."""
        return self.dtype.itemsize

    size = extent = property(Get_size)

    def Get_name(self) -> str:
        """Return the name."""
        return self.name

    def tocode(self) -> str:
        """Return NumPy's character for it."""
        return self.dtype.char

    typechar = property(tocode)

    def __repr__(self) -> str:
        return f"MPI.{self.name}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("Create", "Commit", "Pack", "Unpack")):
            raise NotOfferedError(f"Datatype.{name}")
        raise AttributeError(name)


_NAMES = {
    "BYTE": "u1",
    "CHAR": "i1",
    "SIGNED_CHAR": "i1",
    "UNSIGNED_CHAR": "u1",
    "SHORT": "i2",
    "UNSIGNED_SHORT": "u2",
    "INT": "i4",
    "UNSIGNED": "u4",
    "UNSIGNED_INT": "u4",
    "LONG": "i8",
    "UNSIGNED_LONG": "u8",
    "LONG_LONG": "i8",
    "UNSIGNED_LONG_LONG": "u8",
    "FLOAT": "f4",
    "DOUBLE": "f8",
    "BOOL": "?",
    "C_BOOL": "?",
    "CXX_BOOL": "?",
    "INT8_T": "i1",
    "INT16_T": "i2",
    "INT32_T": "i4",
    "INT64_T": "i8",
    "UINT8_T": "u1",
    "UINT16_T": "u2",
    "UINT32_T": "u4",
    "UINT64_T": "u8",
    "COMPLEX": "c8",
    "DOUBLE_COMPLEX": "c16",
    "C_FLOAT_COMPLEX": "c8",
    "C_DOUBLE_COMPLEX": "c16",
    "REAL": "f4",
    "REAL4": "f4",
    "REAL8": "f8",
    "DOUBLE_PRECISION": "f8",
    "INTEGER": "i4",
}
globals().update({name: Datatype(name, dtype) for name, dtype in _NAMES.items()})
__all__ = [*_NAMES, "Datatype"]

_BY_CODE: dict[str, Datatype] = {}
for _name, _dtype in _NAMES.items():
    _BY_CODE.setdefault(np.dtype(_dtype).char, globals()[_name])


def array_in(spec: Any) -> Any:
    """Return the array that an argument names.

    An array or buffer; or a list of one and a datatype, a count, or a count and a datatype. Raise
    ``NotImplementedError`` for counts by rank and for displacements, ``ValueError`` if the buffer
    is too small.
    """
    if not isinstance(spec, list | tuple):
        return spec if isinstance(spec, np.ndarray) else _viewed(spec)
    buffer, rest = _viewed(spec[0]), list(spec[1:])
    dtype = None
    if rest and isinstance(rest[-1], Datatype | str):
        last = rest.pop()
        dtype = last.dtype if isinstance(last, Datatype) else np.dtype(last)
    if len(rest) > 1 or (rest and not isinstance(rest[0], int | np.integer | type(None))):
        raise NotOfferedError("counts and displacements of each rank", "give equal parts")
    if dtype is not None and dtype != buffer.dtype:
        if buffer.dtype.itemsize != dtype.itemsize and buffer.dtype.itemsize != 1:
            raise ValueError(f"an array of {buffer.dtype} is not one of {dtype}")
        buffer = buffer.reshape(-1).view(dtype)
    if rest and rest[0] is not None and rest[0] != buffer.size:
        if rest[0] > buffer.size:
            raise ValueError(f"the buffer has {buffer.size} elements, not {rest[0]}")
        buffer = buffer.reshape(-1)[: rest[0]]
    return buffer


def _viewed(buffer: Any) -> Any:
    if isinstance(buffer, np.ndarray):
        return buffer
    if hasattr(buffer, "__array__") and not isinstance(buffer, np.generic):
        return np.asarray(buffer)
    return np.asarray(memoryview(buffer))
