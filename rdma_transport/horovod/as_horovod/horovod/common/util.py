"""``horovod.common.util``, the part that programs use."""

import functools

from packaging import version

from rdma_transport.horovod.basics import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "extension_available",
    "gloo_built",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "rocm_built",
]
_cache = functools.cache


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework is supported: TensorFlow is."""
    return ext_base_name == "tensorflow"


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare two versions."""
    return bool(version.parse(ver) >= version.parse(target))
