"""``horovod.keras``, which is ``rdma_transport.horovod.keras``."""

from typing import Any

# Programs take an ImportError for "train serially", and each rank would train alone.
try:
    import rdma_transport.horovod.keras as _ours
    from rdma_transport.horovod.keras import *  # noqa: F403
except ImportError as error:
    raise RuntimeError(f"rdma_transport.horovod cannot start: {error}") from error

from horovod.keras import callbacks, elastic  # noqa: F401


def __getattr__(name: str) -> Any:
    return getattr(_ours, name)
