"""Communicators by mpi4py's names."""

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rdma_transport.collectives.communicator import Communicator
from rdma_transport.collectives.ranks import Ranks, find_ranks
from rdma_transport.mpi.constants import (
    IN_PLACE,
    SUM,
    THREAD_MULTIPLE,
    UNDEFINED,
    Exception,
    NotOfferedError,
    Op,
    native_op,
    translated,
)
from rdma_transport.mpi.datatypes import array_in
from rdma_transport.mpi.messages import Messages
from rdma_transport.mpi.request import Request


class Comm(Messages):
    """A group of processes. Thread-safe, as ``Communicator`` is."""

    def Get_rank(self) -> int:
        """Return the rank of this process."""
        return self._native.rank

    def Get_size(self) -> int:
        """Return the number of processes."""
        return self._native.size

    rank = property(Get_rank)
    size = property(Get_size)
    name = "rdma_transport"

    def Get_name(self) -> str:
        """Return a name."""
        return self.name

    def Is_inter(self) -> bool:
        """Return False."""
        return False

    # --- Upper-case calls, of arrays ---

    def Barrier(self) -> None:
        """See mpi4py."""
        with translated():
            self._native.barrier()

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """See mpi4py."""
        with self._arguments():
            array = array_in(buf)
        with translated():
            self._native.broadcast(array, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """See mpi4py."""
        with self._arguments():
            source, target = _in_place_or_both(sendbuf, recvbuf)
            number = native_op(op)
        with translated():
            self._native.all_reduce(source, number, target)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """See mpi4py."""
        with self._arguments():
            source, target = self._reduced(sendbuf, recvbuf, root)
            number = native_op(op)
        with translated():
            self._native.all_reduce(source, number, target)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """See mpi4py."""
        with self._arguments():
            source, target = self._gathered(sendbuf, recvbuf)
        with translated():
            self._native.all_gather(source, target)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """See mpi4py."""
        with self._arguments():
            if self.rank == root:
                source, target = self._gathered(sendbuf, recvbuf)
            else:
                source, target = array_in(sendbuf), None
        with translated():
            self._native.all_gather(source, target)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """See mpi4py."""
        with self._arguments():
            target = None if recvbuf is IN_PLACE else array_in(recvbuf)
            if self.rank == root:
                whole = array_in(sendbuf)
                self._part(whole)
            elif target is not None:
                whole = np.empty((self.size, target.size), target.dtype)
            else:
                raise ValueError("IN_PLACE is for the root")
        with translated():
            self._native.broadcast(whole, root)
        if target is not None:
            target.reshape(-1)[:] = self._part(whole)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """See mpi4py."""
        with self._arguments():
            source, target = self._scattered(sendbuf, recvbuf)
            number = native_op(op)
        with translated():
            self._native.reduce_scatter(source, number, target)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> None:
        """See mpi4py. All counts must be equal."""
        with self._arguments():
            if recvcounts is not None and len(set(recvcounts)) > 1:
                raise NotOfferedError("Reduce_scatter with different counts")
        self.Reduce_scatter_block(sendbuf, recvbuf, op)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """See mpi4py."""
        with self._arguments():
            source, target = _in_place_or_both(sendbuf, recvbuf)
        with translated():
            self._native.all_to_all(source, target)

    def Ibarrier(self) -> Request:
        """See mpi4py."""
        with translated():
            return Request(self._native.start_barrier())

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        """See mpi4py."""
        with self._arguments(waits=False):
            array = array_in(buf)
        with translated():
            return Request(self._native.start_broadcast(array, root))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """See mpi4py."""
        with self._arguments(waits=False):
            source, target = _in_place_or_both(sendbuf, recvbuf)
            number = native_op(op)
        with translated():
            return Request(self._native.start_all_reduce(source, number, target))

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Request:
        """See mpi4py."""
        with self._arguments(waits=False):
            source, target = self._reduced(sendbuf, recvbuf, root)
            number = native_op(op)
        with translated():
            return Request(self._native.start_all_reduce(source, number, target))

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        """See mpi4py."""
        with self._arguments(waits=False):
            source, target = self._gathered(sendbuf, recvbuf)
        with translated():
            return Request(self._native.start_all_gather(source, target))

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """See mpi4py."""
        with self._arguments(waits=False):
            source, target = _in_place_or_both(sendbuf, recvbuf)
        with translated():
            return Request(self._native.start_all_to_all(source, target))

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """See mpi4py."""
        with self._arguments(waits=False):
            source, target = self._scattered(sendbuf, recvbuf)
            number = native_op(op)
        with translated():
            return Request(self._native.start_reduce_scatter(source, number, target))

    # --- Lower-case calls, of objects ---

    def barrier(self) -> None:
        """See mpi4py."""
        self.Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """See mpi4py."""
        with translated():
            return self._native.broadcast_object(obj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """See mpi4py."""
        with translated():
            return self._native.all_gather_object(sendobj)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """See mpi4py."""
        gathered = self.allgather(sendobj)
        return gathered if self.rank == root else None

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """See mpi4py."""
        with self._arguments():
            if self.rank == root and (sendobj is None or len(sendobj) != self.size):
                raise ValueError(f"scatter() needs {self.size} objects")
        return self.bcast(sendobj, root)[self.rank]

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """See mpi4py."""
        with self._arguments():
            if len(sendobj) != self.size:
                raise ValueError(f"alltoall() needs {self.size} objects")
        return [row[self.rank] for row in self.allgather(list(sendobj))]

    def allreduce(self, sendobj: Any, op: Any = SUM) -> Any:
        """See mpi4py. `op` may be any function of two objects."""
        return functools.reduce(op, self.allgather(sendobj))

    def reduce(self, sendobj: Any, op: Any = SUM, root: int = 0) -> Any:
        """See mpi4py. `op` may be any function of two objects."""
        gathered = self.allgather(sendobj)
        return functools.reduce(op, gathered) if self.rank == root else None

    # --- Groups ---

    def Split(self, color: int = 0, key: int = 0) -> "Comm":
        """See mpi4py."""
        with translated():
            made = self._native.split(None if color == UNDEFINED else color, key)
        return COMM_NULL if made is None else Intracomm(made)

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> "Comm":
        """Return a communicator of the ranks of this host, whatever the type."""
        hosts = self.allgather(_host())
        return self.Split(hosts.index(hosts[self.rank]), key)

    def Dup(self, info: Any = None) -> "Comm":
        """See mpi4py."""
        return self.Split(0, self.rank)

    Clone = Dup

    def Free(self) -> None:
        """Leave the communicator."""
        self._native.close()

    Disconnect = Free

    def Abort(self, errorcode: int = 0) -> None:
        """End this process at once, and the calls of all others with an error."""
        sys.stdout.flush()
        os._exit(errorcode)

    def Set_errhandler(self, errhandler: Any) -> None:
        """Do nothing: errors are exceptions."""

    @contextlib.contextmanager
    def _arguments(self, waits: bool = True) -> Iterator[None]:
        """Read the arguments of a collective; if that fails, the calls of the others fail, too.

        `waits`: of a blocking call.
        """
        try:
            yield
        except BaseException:
            self._native.reject(waits)
            raise

    def _part(self, whole: Any, rank: int | None = None) -> Any:
        """Return the part of an array that belongs to a rank, by default to this one."""
        if whole.size % self.size:
            raise ValueError(f"{whole.size} elements are not equal parts for {self.size} ranks")
        chosen = self.rank if rank is None else rank
        return whole.reshape(self.size, -1)[chosen]

    def _reduced(self, sendbuf: Any, recvbuf: Any, root: int) -> tuple[Any, Any]:
        """Return the arrays of a reduction: on other ranks, the result is dropped."""
        if self.rank != root:
            return array_in(sendbuf), None
        return _in_place_or_both(sendbuf, recvbuf)

    def _gathered(self, sendbuf: Any, recvbuf: Any) -> tuple[Any, Any]:
        target = array_in(recvbuf)
        return (self._part(target) if sendbuf is IN_PLACE else array_in(sendbuf)), target

    def _scattered(self, sendbuf: Any, recvbuf: Any) -> tuple[Any, Any]:
        target = array_in(recvbuf)
        if sendbuf is IN_PLACE:
            return target, self._part(target, 0)
        return array_in(sendbuf), target

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotOfferedError(f"Comm.{name}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}>"


def _host() -> tuple[str, str]:
    """Return what ranks that can share memory have in common."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return boot, os.readlink("/proc/self/ns/net")


def _in_place_or_both(sendbuf: Any, recvbuf: Any) -> tuple[Any, Any]:
    target = array_in(recvbuf)
    return (target if sendbuf is IN_PLACE else array_in(sendbuf)), target


class Intracomm(Comm):
    """A communicator of one group."""


class _World(Intracomm):
    """COMM_WORLD, or COMM_SELF: connects when it is first used."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._made: Communicator | None = None
        self._finalized = False

    @property
    def _native(self) -> Communicator:  # type: ignore[override]
        if self._made is None:
            with translated():
                self._made = Communicator.connect(self._ranks)
        return self._made

    def Get_rank(self) -> int:
        """Return the rank of this process."""
        return self._ranks.rank

    def Get_size(self) -> int:
        """Return the number of processes."""
        return self._ranks.size

    rank = property(Get_rank)
    size = property(Get_size)


class _Null(Comm):
    """COMM_NULL."""

    def __init__(self) -> None:
        pass

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        raise Exception("this is COMM_NULL: the process is not in the communicator")


COMM_WORLD = _World(find_ranks())
COMM_SELF = _World(Ranks())
COMM_NULL = _Null()

_finalized = False


def Init() -> None:
    """Connect to all other ranks. Importing the module did that."""
    if COMM_WORLD.size > 1:
        _ = COMM_WORLD._native


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    """Connect, and return THREAD_MULTIPLE."""
    Init()
    return THREAD_MULTIPLE


def Is_initialized() -> bool:
    """Return True."""
    return True


def Is_finalized() -> bool:
    """Return whether ``Finalize()`` was called."""
    return _finalized


def Finalize() -> None:
    """Wait for all ranks, and leave. Idempotent."""
    global _finalized
    if _finalized:
        return
    _finalized = True
    for world in (COMM_WORLD, COMM_SELF):
        made = world._made
        if made is None:
            continue
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            made.barrier()
        made.close()


Init()
atexit.register(Finalize)
