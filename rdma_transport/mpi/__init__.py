"""The commonly used part of ``mpi4py.MPI``, over ``rdma_transport.collectives``.

``from rdma_transport import mpi as MPI`` replaces ``from mpi4py import MPI``, and programs that
``rdma-transport run --mpi4py`` starts need no change. Calls mean what they mean in mpi4py, whose
documentation describes them. What is missing raises ``NotImplementedError`` with its name.

The processes connect when this module is imported, and leave when they exit.
"""

import time
from typing import Any

from rdma_transport.mpi.comm import COMM_NULL, Comm, Intracomm
from rdma_transport.mpi.constants import (
    ANY_SOURCE,
    ANY_TAG,
    COMM_TYPE_SHARED,
    ERR_ARG,
    ERR_COMM,
    ERR_IN_STATUS,
    ERR_OTHER,
    ERR_PENDING,
    ERR_PROC_FAILED,
    ERR_RANK,
    ERR_REQUEST,
    ERR_ROOT,
    ERR_TAG,
    ERR_TRUNCATE,
    IN_PLACE,
    KEYVAL_INVALID,
    PROC_NULL,
    SUCCESS,
    THREAD_FUNNELED,
    THREAD_MULTIPLE,
    THREAD_SERIALIZED,
    THREAD_SINGLE,
    UNDEFINED,
    Exception,
    NotOfferedError,
)
from rdma_transport.mpi.datatypes import *  # noqa: F403
from rdma_transport.mpi.datatypes import Datatype
from rdma_transport.mpi.operations import LAND, LOR, MAX, MIN, PROD, SUM, Op
from rdma_transport.mpi.request import REQUEST_NULL, Request, Status
from rdma_transport.mpi.world import (
    COMM_SELF,
    COMM_WORLD,
    Finalize,
    Init,
    Init_thread,
    Is_finalized,
    Is_initialized,
)

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "COMM_NULL",
    "COMM_SELF",
    "COMM_TYPE_SHARED",
    "COMM_WORLD",
    "ERR_ARG",
    "ERR_COMM",
    "ERR_IN_STATUS",
    "ERR_OTHER",
    "ERR_PENDING",
    "ERR_PROC_FAILED",
    "ERR_RANK",
    "ERR_REQUEST",
    "ERR_ROOT",
    "ERR_TAG",
    "ERR_TRUNCATE",
    "IN_PLACE",
    "KEYVAL_INVALID",
    "LAND",
    "LOR",
    "MAX",
    "MIN",
    "PROC_NULL",
    "PROD",
    "REQUEST_NULL",
    "SUCCESS",
    "SUM",
    "THREAD_FUNNELED",
    "THREAD_MULTIPLE",
    "THREAD_SERIALIZED",
    "THREAD_SINGLE",
    "UNDEFINED",
    "Comm",
    "Datatype",
    "Exception",
    "Finalize",
    "Get_library_version",
    "Get_processor_name",
    "Get_version",
    "Init",
    "Init_thread",
    "Intracomm",
    "Is_finalized",
    "Is_initialized",
    "Op",
    "Query_thread",
    "Request",
    "Status",
    "Wtick",
    "Wtime",
]


def Get_processor_name() -> str:
    """Return the name of this host."""
    import socket

    return socket.gethostname()


def Get_version() -> tuple[int, int]:
    """Return the version of the MPI standard that the names are of."""
    return 3, 1


def Get_library_version() -> str:
    """Return name and version of this library."""
    from rdma_transport import __version__

    return f"rdma_transport {__version__}"


def Query_thread() -> int:
    """Return THREAD_MULTIPLE: all calls are thread-safe."""
    return THREAD_MULTIPLE


def Wtime() -> float:
    """Return a time in seconds."""
    return time.perf_counter()


def Wtick() -> float:
    """Return the resolution of ``Wtime()`` in seconds."""
    return time.get_clock_info("perf_counter").resolution


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotOfferedError(f"MPI.{name}")
