"""Stands in for Horovod in programs that ``rdma-transport run --horovod`` starts."""

from typing import Any

__version__ = "0.28.1"


def run(*args: Any, **kwargs: Any) -> None:
    """Refuse."""
    raise NotImplementedError(
        "horovod.run() is not offered by rdma_transport.horovod: start the ranks with "
        "'rdma-transport run --horovod -n 2 -- python train.py'"
    )
