"""The communicators of all ranks and of this one alone, and the life of the library."""

import atexit
import dataclasses
import math
import os
import sys
import threading
from typing import Any

from rdma_transport._collectives import start_timeout
from rdma_transport.collectives.communicator import Communicator
from rdma_transport.collectives.membership import is_elastic
from rdma_transport.collectives.ranks import Ranks, find_ranks
from rdma_transport.collectives.wire import Deadline
from rdma_transport.error_file import PART_VARIABLE
from rdma_transport.fabric import FabricStateError
from rdma_transport.mpi.comm import Handle, Intracomm
from rdma_transport.mpi.constants import ERR_OTHER, THREAD_MULTIPLE, Exception, translated


class _World(Handle):
    """A communicator that connects in a thread; the first call waits for it. Thread-safe."""

    _lock = threading.Lock()
    _initialized = False
    _finalized = False

    def __init__(self, name: str, ranks: Ranks) -> None:
        self.name, self.ranks, self._made = name, ranks, None
        self._deadline = Deadline(math.inf)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Begin to connect."""
        with _World._lock:
            if self._thread is None:
                self._deadline, self._failure = Deadline(math.inf), None
                self._thread = threading.Thread(target=self._connect, daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def native(self) -> Communicator:
        """Return the communicator, connected; raise ``Exception``."""
        if self._made is not None:
            return self._made
        if not _World._initialized:
            raise Exception(ERR_OTHER, "MPI.Init() was not called: rc.initialize is False")
        if _World._finalized:
            raise Exception(ERR_OTHER, "MPI.Finalize() was called")
        self.start()
        with _World._lock:
            thread = self._thread
            if math.isinf(self._deadline.seconds):
                self._deadline.move(start_timeout())
        if thread:
            thread.join()
        made = self._made
        if made is not None:
            return made
        with _World._lock:
            self._thread = None  # the next call tries again
        with translated():
            raise self._failure or FabricStateError("the process that forked this one connected")

    def close(self) -> None:
        """Leave the communicator, or stop connecting."""
        with _World._lock:
            thread = self._thread
        if thread:
            self._deadline.move(0)
            thread.join()
        if self._made is not None:
            self._made.close()

    def _connect(self) -> None:
        try:
            if is_elastic():
                raise FabricStateError(
                    "mpi4py's communicators are not offered in elastic jobs, whose ranks change: "
                    "use hvd.allgather_object() and others, or omit --elastic"
                )
            self._made = Communicator.connect(self.ranks, timeout=self._deadline)
        except BaseException as error:
            self._failure = error


_world = _World("MPI_COMM_WORLD", dataclasses.replace(find_ranks(), purpose="mpi"))
_self = _World("MPI_COMM_SELF", Ranks())
COMM_WORLD: Intracomm = Intracomm._of(_world)
COMM_SELF: Intracomm = Intracomm._of(_self)


def Init() -> None:
    """Connect to all other ranks. Importing the module does that, too.

    Beside Horovod, do not wait for them: a rank may import the module before ``init()`` and another
    one after it, or never.
    """
    _World._initialized = True
    if COMM_WORLD.size > 1:
        _world.start()
        if PART_VARIABLE not in os.environ:
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
