"""The communicators of all ranks and of this one alone, and the life of the library."""

import atexit
import sys
import threading
from typing import Any

from rdma_transport.collectives.communicator import Communicator
from rdma_transport.collectives.ranks import Ranks, find_ranks
from rdma_transport.mpi.comm import Handle, Intracomm
from rdma_transport.mpi.constants import ERR_OTHER, THREAD_MULTIPLE, Exception, translated


class _World(Handle):
    """A communicator that connects when it is first used. Thread-safe."""

    _lock = threading.Lock()
    _initialized = False
    _finalized = False

    def __init__(self, name: str, ranks: Ranks) -> None:
        self.name, self.ranks, self._made = name, ranks, None

    def native(self) -> Communicator:
        """Return the communicator, connected; raise ``Exception``."""
        if self._made is not None:
            return self._made
        with _World._lock:
            if not _World._initialized:
                raise Exception(ERR_OTHER, "MPI.Init() was not called: rc.initialize is False")
            if _World._finalized:
                raise Exception(ERR_OTHER, "MPI.Finalize() was called")
            if self._made is None:
                with translated():
                    self._made = Communicator.connect(self.ranks)
            return self._made

    def close(self) -> None:
        """Leave the communicator."""
        if self._made is not None:
            self._made.close()


_world, _self = _World("MPI_COMM_WORLD", find_ranks()), _World("MPI_COMM_SELF", Ranks())
COMM_WORLD: Intracomm = Intracomm._of(_world)
COMM_SELF: Intracomm = Intracomm._of(_self)


def Init() -> None:
    """Connect to all other ranks. Importing the module does that, too."""
    _World._initialized = True
    if COMM_WORLD.size > 1:
        _world.native()


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    """Connect, and return THREAD_MULTIPLE."""
    Init()
    return THREAD_MULTIPLE


def Is_initialized() -> bool:
    """Return whether ``Init()`` was called, or the module did that."""
    return _World._initialized


def Is_finalized() -> bool:
    """Return whether ``Finalize()`` was called."""
    return _World._finalized


def Finalize() -> None:
    """Leave, once what was sent has arrived. Idempotent.

    Does not wait for the other ranks: those that wait for this one get an error.
    """
    with _World._lock:
        _World._finalized = True
    for world in (_world, _self):
        world.close()


def start() -> None:
    """Do what importing ``mpi4py.MPI`` does, as ``mpi4py.rc`` says."""
    rc: Any = getattr(sys.modules.get("mpi4py"), "rc", None)
    if getattr(rc, "initialize", True):
        Init()
    if getattr(rc, "finalize", None) is not False:
        atexit.register(Finalize)


start()
