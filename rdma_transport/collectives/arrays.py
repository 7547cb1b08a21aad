"""What collectives need to know of arrays."""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rdma_transport._collectives import DTYPES
from rdma_transport._fabric import FabricValueError

if TYPE_CHECKING:
    from typing_extensions import Buffer  # of collections.abc from Python 3.12 on

    ArrayOrBuffer: TypeAlias = np.ndarray[Any, Any] | np.generic | Buffer
else:
    ArrayOrBuffer: TypeAlias = Any

OPS = {"sum": 0, "prod": 1, "min": 2, "max": 3, "mean": 0}  # a mean is a sum, then divided

_CODES: dict[Any, int] = {
    np.dtype(name): code for name, code in DTYPES.items() if name != "bfloat16"
}


def code_of(dtype: Any) -> int:
    """Return the number of a type of elements; raise ``FabricValueError`` for others."""
    code = _CODES.get(dtype)
    if code is None:
        name = getattr(dtype, "name", str(dtype))
        if name != "bfloat16" and not (dtype.kind in "iu" and dtype.isnative):
            raise FabricValueError(
                f"arrays of {name} ({dtype.str}) cannot be sent; the types are "
                f"{', '.join(DTYPES)}, in the byte order of this host"
            )
        # ml_dtypes' bfloat16, and NumPy's other names of integers, such as long long
        code = _CODES[dtype] = DTYPES[name]
    return code


def array_of(buffer: Any) -> Any:
    """Return an array over any buffer, without a copy; raise ``FabricValueError``."""
    if type(buffer) is np.ndarray:
        return buffer
    if isinstance(buffer, np.ndarray | np.generic):
        return np.asarray(buffer)
    try:
        return np.asarray(memoryview(buffer))
    except (TypeError, ValueError) as error:
        raise FabricValueError(f"{type(buffer).__name__} is no array or buffer: {error}") from None


def output_of(buffer: Any) -> Any:
    """Return an array over a buffer that a call writes; raise ``FabricValueError``."""
    if isinstance(buffer, np.generic):
        raise FabricValueError(f"a scalar ({type(buffer).__name__}) is read-only; give an array")
    return array_of(buffer)


def exported(array: Any, code: int) -> Any:
    """Return an object with the buffer protocol, which arrays of bfloat16 lack."""
    return array.view(np.uint16) if code == DTYPES["bfloat16"] else array


def op_of(op: str, dtype: Any) -> int:
    """Return the number of an operation; raise ``FabricValueError`` for an unknown one."""
    number = OPS.get(op)
    if number is None:
        raise FabricValueError(f"there is no operation {op!r}; give one of {', '.join(OPS)}")
    if op == "mean" and dtype.kind in "biu":
        raise FabricValueError(f"a mean of {dtype} is no {dtype}; reduce by sum, and divide")
    return number


def divide(array: Any, members: int) -> None:
    """Divide an array in place."""
    np.divide(array, array.dtype.type(members), out=array)
