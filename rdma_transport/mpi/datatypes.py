"""Datatypes: the types of elements that have a name in MPI."""

from typing import Any

import numpy as np

from rdma_transport.mpi.constants import PUBLIC, Constant, NotOfferedError


class Datatype(Constant):
    """A type of elements. Types that a program makes are missing."""

    __module__ = PUBLIC
    _code: str
    _dtype: Any

    def __new__(cls, datatype: "Datatype | None" = None) -> "Datatype":
        """Return another object for the same type."""
        if datatype is None:
            raise NotOfferedError("DATATYPE_NULL")
        return cls._define(datatype._name, datatype._code, datatype._dtype)

    @classmethod
    def _define(cls, name: str, code: str, dtype: Any = None) -> "Datatype":
        made = object.__new__(cls)
        made._name, made._code, made._dtype = name, code, np.dtype(dtype or code)
        return made

    @property
    def _reducible(self) -> bool:
        return self._name not in ("BYTE", "CHAR") and self._dtype.kind in "iufcV"

    def Get_size(self) -> int:
        """Return the bytes of one element."""
        size: int = self._dtype.itemsize
        return size

    size = extent = property(Get_size)

    def Get_name(self) -> str:
        """Return the name in MPI."""
        return f"MPI_{self._name}"

    name = property(Get_name)

    def tocode(self) -> str:
        """Return the character or name that NumPy has for it."""
        return self._code

    @property
    def typechar(self) -> str:
        """The character that NumPy has for it."""
        return self._code if self._code == "c" else str(self._dtype.char)

    @property
    def typestr(self) -> str:
        """The name that NumPy has for it, such as f8."""
        return str(self._dtype.str[1:])


# Names in mpi4py, with what tocode() returns. Those behind / are MPI's names where they differ.
_CODES = {
    "BYTE": "B", "CHAR": "c", "SIGNED_CHAR": "b", "UNSIGNED_CHAR": "B",
    "SHORT": "h", "UNSIGNED_SHORT": "H", "INT": "i", "UNSIGNED": "I", "UNSIGNED_INT": "I/UNSIGNED",
    "LONG": "l", "UNSIGNED_LONG": "L", "LONG_LONG": "q/LONG_LONG_INT", "UNSIGNED_LONG_LONG": "Q",
    "FLOAT": "f", "DOUBLE": "d", "C_BOOL": "b1", "BOOL": "b1/C_BOOL", "CXX_BOOL": "?",
    "INT8_T": "i1", "INT16_T": "i2", "INT32_T": "i4", "INT64_T": "i8",
    "UINT8_T": "u1", "UINT16_T": "u2", "UINT32_T": "u4", "UINT64_T": "u8",
    "COMPLEX": "F", "DOUBLE_COMPLEX": "D",
    "C_FLOAT_COMPLEX": "F/C_COMPLEX", "C_DOUBLE_COMPLEX": "D",
    "REAL": "f", "REAL4": "f4", "REAL8": "f8", "DOUBLE_PRECISION": "d", "INTEGER": "i",
}  # fmt: skip


def _made() -> dict[str, Datatype]:
    made: dict[str, Datatype] = {}
    for name, text in _CODES.items():
        code, _, other = text.partition("/")
        made[name] = made.get(other) or Datatype._define(other or name, code)
    return made


def named_bfloat16(dtype: Any) -> Datatype:
    """Return the type of ml_dtypes' bfloat16, which has no name in mpi4py, for its arrays."""
    return Datatype._define("BFLOAT16", "", dtype)


_TYPES = _made()
globals().update(_TYPES)
__all__ = [*_TYPES, "Datatype"]
_TYPES["FLOAT16"] = Datatype._define("FLOAT16", "e")  # has no name in mpi4py with most MPIs

# The types of formats of the buffer protocol, and of strings in their place.
_BY_CODE = {
    "b": "SIGNED_CHAR", "h": "SHORT", "i": "INT", "l": "LONG", "q": "LONG_LONG",
    "B": "UNSIGNED_CHAR", "H": "UNSIGNED_SHORT", "I": "UNSIGNED", "L": "UNSIGNED_LONG",
    "Q": "UNSIGNED_LONG_LONG", "n": "LONG", "N": "UNSIGNED_LONG", "?": "C_BOOL", "b1": "C_BOOL",
    "f": "FLOAT", "d": "DOUBLE", "f4": "FLOAT", "f8": "DOUBLE",
    "F": "C_FLOAT_COMPLEX", "D": "C_DOUBLE_COMPLEX", "Zf": "C_FLOAT_COMPLEX",
    "Zd": "C_DOUBLE_COMPLEX", "c8": "C_FLOAT_COMPLEX", "c16": "C_DOUBLE_COMPLEX",
    "i1": "INT8_T", "i2": "INT16_T", "i4": "INT32_T", "i8": "INT64_T",
    "u1": "UINT8_T", "u2": "UINT16_T", "u4": "UINT32_T", "u8": "UINT64_T",
    "e": "FLOAT16", "f2": "FLOAT16",
    "c": "CHAR", "a": "CHAR", "S": "CHAR", "S1": "CHAR", "s": "CHAR", "1s": "CHAR",
}  # fmt: skip
# Those that mpi4py knows, too, and that have no name here.
_MISSING = {
    "g": "LONG_DOUBLE", "f16": "LONG_DOUBLE",
    "G": "C_LONG_DOUBLE_COMPLEX", "Zg": "C_LONG_DOUBLE_COMPLEX", "c32": "C_LONG_DOUBLE_COMPLEX",
    "U": "WCHAR", "U1": "WCHAR", "w": "WCHAR", "1w": "WCHAR", "u": "WCHAR", "1u": "WCHAR",
    "p": "AINT", "P": "UNSIGNED_LONG", "M": "INT64_T", "M8": "INT64_T", "m": "INT64_T",
    "m8": "INT64_T",
}  # fmt: skip


def type_of(code: Any) -> Datatype:
    """Return the type that a format of the buffer protocol, or a string of mpi4py's, means.

    Raise ``NotImplementedError`` if it has no name here, ``KeyError`` if it means none in mpi4py.
    """
    if isinstance(code, Datatype):
        return code
    if code in _MISSING:
        raise NotOfferedError(f"MPI.{_MISSING[code]} ({code!r})", "BYTE sends any array as bytes")
    if code not in _BY_CODE:
        raise KeyError(f"cannot map {code!r} to MPI datatype")
    return _TYPES[_BY_CODE[code]]
