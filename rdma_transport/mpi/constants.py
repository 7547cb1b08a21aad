"""Constants and errors, by mpi4py's names, and how names that are missing are refused."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from rdma_transport._collectives import MessageTruncatedError
from rdma_transport._fabric import FabricConnectionError, FabricError

PUBLIC = "rdma_transport.mpi"  # the module of the public classes
ANY_SOURCE = -1
ANY_TAG = -1
PROC_NULL = -2
UNDEFINED = -32766
KEYVAL_INVALID = -1
COMM_TYPE_SHARED = 0
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
# The classes of the errors that calls raise here, with OpenMPI's numbers.
SUCCESS = 0
ERR_TAG, ERR_COMM, ERR_RANK, ERR_REQUEST, ERR_ROOT = 4, 5, 6, 7, 8
ERR_ARG, ERR_TRUNCATE, ERR_OTHER, ERR_IN_STATUS, ERR_PENDING = 13, 15, 16, 18, 19
ERR_PROC_FAILED = 75


class NotOfferedError(NotImplementedError, AttributeError):
    """A part of mpi4py that is missing here."""

    def __init__(self, name: str, instead: str = "") -> None:
        hint = f"; {instead}" if instead else ""
        super().__init__(
            f"rdma_transport.mpi does not offer {name}{hint}. A program that needs it needs mpi4py "
            "and an MPI"
        )


class _Partial(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotOfferedError(f"{cls.__name__}.{name}")


class Partial(metaclass=_Partial):
    """A class of mpi4py that is here in part. The names that are missing raise."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotOfferedError(f"{type(self).__name__}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        found = getattr(type(self), name, None) if hasattr(type(self), name) else None
        if isinstance(found, property) and found.fset is None:
            raise NotOfferedError(f"setting {type(self).__name__}.{name}")
        object.__setattr__(self, name, value)


class Named(Partial):
    """A class whose predefined objects are pickled by their names; others cannot be."""

    def __reduce__(self) -> Any:
        for name, value in vars(sys.modules[type(self).__module__]).items():
            if value is self:
                return name
        for value in vars(sys.modules[PUBLIC]).values():
            if isinstance(value, Named) and value == self:
                return type(self), (value,)
        raise ValueError(f"cannot serialize {self!r}: it has no name")


class Constant(Named):
    """A class whose objects are known by their names in MPI, which are unique."""

    _name: str

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and other._name == self._name

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"MPI.{self._name}"


class Exception(RuntimeError):
    """An error of a call, as mpi4py raises it. The message names the rank that caused it."""

    __module__ = PUBLIC

    def __init__(self, ierr: int = SUCCESS, message: str = "") -> None:
        super().__init__(int(ierr))
        self._message = message or f"error code {int(ierr)}"

    def __int__(self) -> int:
        code: int = self.args[0]
        return code

    def __bool__(self) -> bool:
        return int(self) != SUCCESS

    def __eq__(self, other: object) -> bool:
        return int(self) == other

    def __lt__(self, other: Any) -> bool:
        return int(self) < int(other)

    def __le__(self, other: Any) -> bool:
        return int(self) <= int(other)

    def __gt__(self, other: Any) -> bool:
        return int(self) > int(other)

    def __ge__(self, other: Any) -> bool:
        return int(self) >= int(other)

    def __hash__(self) -> int:
        return hash(int(self))

    def __str__(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"MPI.Exception({int(self)})"

    def Get_error_class(self) -> int:
        """Return one of the constants ``ERR_...``."""
        return int(self)

    Get_error_code = Get_error_class

    def Get_error_string(self) -> str:
        """Return the message."""
        return str(self)

    error_class = error_code = property(Get_error_class)
    error_string = property(Get_error_string)


class _InPlace:
    def __repr__(self) -> str:
        return "IN_PLACE"


IN_PLACE: Any = _InPlace()


def in_place(buffer: Any) -> bool:
    """Return whether an argument says that the call works in place."""
    return buffer is None or buffer is IN_PLACE


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise errors of the fabric as mpi4py does."""
    try:
        yield
    except FabricConnectionError as error:
        raise Exception(ERR_PROC_FAILED, str(error)) from error
    except MessageTruncatedError as error:
        raise Exception(ERR_TRUNCATE, str(error)) from error
    except FabricError as error:
        raise Exception(ERR_OTHER, str(error)) from error
