"""Operations of reductions."""

from collections.abc import Callable
from typing import Any

from rdma_transport.mpi.constants import PUBLIC, Constant, NotOfferedError


class Op(Constant):
    """An operation. Lower-case calls may use any function of two objects instead."""

    __module__ = PUBLIC
    _native: str
    _combine: Callable[[Any, Any], Any]

    def __new__(cls, op: "Op | None" = None) -> "Op":
        """Return another object for the same operation."""
        if op is None:
            raise NotOfferedError("OP_NULL")
        made = object.__new__(cls)
        made._name, made._native, made._combine = op._name, op._native, op._combine
        return made

    @classmethod
    def _define(cls, name: str, native: str, combine: Callable[[Any, Any], Any]) -> "Op":
        made = object.__new__(cls)
        made._name, made._native, made._combine = name, native, combine
        return made

    def __call__(self, x: Any, y: Any) -> Any:
        """Combine two objects."""
        return self._combine(x, y)

    def Is_commutative(self) -> bool:
        """Return True."""
        return True

    def Is_predefined(self) -> bool:
        """Return True."""
        return True

    is_commutative = property(Is_commutative)
    is_predefined = property(Is_predefined)

    @classmethod
    def Create(cls, function: Any, commute: bool = False) -> "Op":
        """Raise ``NotImplementedError``."""
        raise NotOfferedError("Op.Create", "lower-case calls such as allreduce() take any function")


SUM = Op._define("SUM", "sum", lambda x, y: x + y)
PROD = Op._define("PROD", "prod", lambda x, y: x * y)
MAX = Op._define("MAX", "max", lambda x, y: y if y > x else x)
MIN = Op._define("MIN", "min", lambda x, y: y if y < x else x)
LAND = Op._define("LAND", "", lambda x, y: bool(x) & bool(y))
LOR = Op._define("LOR", "", lambda x, y: bool(x) | bool(y))


def native_op(op: Any) -> str:
    """Return the operation of ``Communicator``; raise ``NotImplementedError``."""
    if not isinstance(op, Op):
        raise TypeError(f"{op!r} is no operation")
    if not op._native:
        raise NotOfferedError(f"{op!r} for arrays", "SUM, PROD, MIN and MAX are offered")
    return op._native
