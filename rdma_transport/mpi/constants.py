"""Constants, operations and errors, by mpi4py's names."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rdma_transport._fabric import FabricConnectionError, FabricError

ANY_SOURCE = -1
ANY_TAG = -1
PROC_NULL = -2
UNDEFINED = -32766
KEYVAL_INVALID = -1
COMM_TYPE_SHARED = 0
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
ERR_COMM, ERR_TRUNCATE, ERR_OTHER, ERR_PROC_FAILED = 5, 15, 16, 75


class NotOfferedError(NotImplementedError, AttributeError):
    """A part of mpi4py that is missing here."""

    def __init__(self, name: str, instead: str = "") -> None:
        hint = f"; {instead}" if instead else ""
        super().__init__(f"rdma_transport.mpi does not offer {name}{hint}. Use mpi4py for it")


class Exception(RuntimeError):
    """An error of a call, as mpi4py raises it. The message names the rank that caused it."""

    def __init__(self, message: str = "", code: int = ERR_OTHER) -> None:
        super().__init__(message)
        self._code = code

    def Get_error_class(self) -> int:
        """Return one of the constants ``ERR_...``."""
        return self._code

    Get_error_code = Get_error_class

    def Get_error_string(self) -> str:
        """Return the message."""
        return str(self)


class InPlace:
    """The type of IN_PLACE."""

    def __repr__(self) -> str:
        return "MPI.IN_PLACE"


IN_PLACE: Any = InPlace()


class Op:
    """An operation. Lower-case calls may use any function of two objects instead."""

    def __init__(self, name: str, native: str, combine: Callable[[Any, Any], Any]) -> None:
        self.name, self.native, self._combine = name, native, combine

    def __call__(self, a: Any, b: Any) -> Any:
        """Combine two objects."""
        return self._combine(a, b)

    def Is_commutative(self) -> bool:
        """Return True."""
        return True

    is_commutative = property(Is_commutative)
    is_predefined = True

    def __repr__(self) -> str:
        return f"MPI.{self.name}"

    @classmethod
    def Create(cls, function: Any, commute: bool = False) -> "Op":
        """Raise ``NotImplementedError``."""
        raise NotOfferedError("Op.Create", "lower-case calls such as allreduce() take any function")


SUM = Op("SUM", "sum", lambda a, b: a + b)
PROD = Op("PROD", "prod", lambda a, b: a * b)
MAX = Op("MAX", "max", lambda a, b: b if b > a else a)
MIN = Op("MIN", "min", lambda a, b: b if b < a else a)
LAND = Op("LAND", "", lambda a, b: bool(a) and bool(b))
LOR = Op("LOR", "", lambda a, b: bool(a) or bool(b))


def native_op(op: Any) -> str:
    """Return the operation of ``Communicator``; raise ``NotImplementedError``."""
    if not isinstance(op, Op) or not op.native:
        raise NotOfferedError(f"{op!r} for arrays", "SUM, PROD, MIN and MAX are offered")
    return op.native


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise errors of the fabric as mpi4py does."""
    try:
        yield
    except FabricConnectionError as error:
        raise Exception(str(error), ERR_PROC_FAILED) from error
    except FabricError as error:
        raise Exception(str(error), ERR_OTHER) from error
