"""Stands in for mpi4py in programs that ``rdma-transport run --mpi4py`` starts."""

from types import SimpleNamespace
from typing import Any

__version__ = "4.0.0"
rc = SimpleNamespace(
    initialize=True, finalize=True, threads=True, thread_level="multiple", errors="exception"
)


def get_config() -> dict[str, Any]:
    """Return an empty configuration: nothing was compiled."""
    return {}
