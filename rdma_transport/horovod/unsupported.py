"""What Horovod has and this package does not: using it says so."""

from collections.abc import Callable
from typing import Any

_WHAT = {
    "torch": "The interface for PyTorch",
    "mxnet": "The interface for MXNet",
    "spark": "The interface for Spark",
    "ray": "The interface for Ray",
}

# Of horovod.tensorflow and horovod.tensorflow.keras.
_NAMES = frozenset(
    (
        "BestModelCheckpoint",
        "check_extension",
        "check_num_rank_power_of_2",
        "gpu_available",
        "get_average_backwards_compatibility_fun",
        "num_rank_is_power_2",
        "broadcast_object_with_session",
        "run",
    )
)


def refuse(name: str) -> NotImplementedError:
    """Return the error for something that is not offered."""
    what = _WHAT.get(name.rpartition("horovod.")[2].partition(".")[0], "")
    return NotImplementedError(
        f"{name} is not offered by rdma_transport.horovod"
        + (f": {what} is not part of it" if what else "")
    )


def attributes_of(module: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module: names of Horovod raise ``NotImplementedError``."""

    def getattribute(name: str) -> Any:
        if name in _NAMES:
            raise refuse(f"{module}.{name}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return getattribute
