"""``horovod.tensorflow``, which is ``rdma_transport.horovod``."""

from typing import Any

# Programs take an ImportError for "train serially", and each rank would train alone.
try:
    import rdma_transport.horovod as _ours
    from rdma_transport.horovod import *  # noqa: F403
except ImportError as error:
    raise RuntimeError(f"rdma_transport.horovod cannot start: {error}") from error

from horovod.tensorflow import compression, elastic, functions, mpi_ops, util  # noqa: F401
from horovod.tensorflow.util import _executing_eagerly  # noqa: F401


def __getattr__(name: str) -> Any:
    return getattr(_ours, name)
