"""Messages between two ranks, by mpi4py's names."""

import pickle
import warnings
from typing import Any

import numpy as np

from rdma_transport._fabric import FabricConnectionError
from rdma_transport.collectives.communicator import Communicator
from rdma_transport.mpi.buffers import elements
from rdma_transport.mpi.constants import (
    ANY_SOURCE,
    ANY_TAG,
    ERR_RANK,
    ERR_TAG,
    PROC_NULL,
    Exception,
    Named,
    NotOfferedError,
    translated,
)
from rdma_transport.mpi.request import NOBODY, Request, Status

_LEFT = "closed the communicator"  # is in the errors that concern ranks that left in order


class Messages(Named):
    """The calls of a communicator that concern two ranks."""

    @property
    def _native(self) -> Communicator:
        raise NotImplementedError

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """See mpi4py."""
        if self._reaches(dest, tag):
            memory = elements(buf, writable=False).memory
            with translated():
                self._native.send(memory, dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """See mpi4py."""
        if not self._reaches(dest, tag):
            return Request._to_nobody()
        memory = elements(buf, writable=False).memory
        with translated():
            return Request._of(self._native.start_send(memory, dest, tag))

    def Recv(
        self,
        buf: Any,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """See mpi4py."""
        received = NOBODY
        if self._reaches(source, tag, ANY_SOURCE, ANY_TAG):
            memory = elements(buf, writable=True).memory
            with translated():
                received = self._native.recv(memory, source, tag)
        if status is not None:
            status._set(received)

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """See mpi4py."""
        if not self._reaches(source, tag, ANY_SOURCE, ANY_TAG):
            return Request._to_nobody()
        memory = elements(buf, writable=True).memory
        with translated():
            native = self._native.start_recv(memory, source, tag)
        return Request._of(native, lambda received: (None, received))

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """See mpi4py."""
        if self._reaches(source, recvtag, ANY_SOURCE, ANY_TAG):
            elements(recvbuf, writable=True)  # raises before anything is sent
        sent = self.Isend(sendbuf, dest, sendtag)
        self.Recv(recvbuf, source, recvtag, status)
        sent.Wait()

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """See mpi4py."""
        copy = None
        if (dest, source) != (PROC_NULL, PROC_NULL):
            copy = elements(buf, writable=True).memory.copy()
        self.Sendrecv(copy, dest, sendtag, buf, source, recvtag, status)

    def Iprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        """See mpi4py."""
        found: tuple[int, int, int] | None = NOBODY
        if self._reaches(source, tag, ANY_SOURCE, ANY_TAG):
            with translated():
                found = self._probed(source, tag)
        if found is not None and status is not None:
            status._set(found)
        return found is not None

    def Probe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        """See mpi4py."""
        found = NOBODY
        if self._reaches(source, tag, ANY_SOURCE, ANY_TAG):
            with translated():
                found = self._native.wait_for_message(source, tag)
        if status is not None:
            status._set(found)
        return True

    iprobe, probe = Iprobe, Probe

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """See mpi4py."""
        if self._reaches(dest, tag):
            with translated():
                self._native.send_object(obj, dest, tag)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """See mpi4py."""
        if not self._reaches(dest, tag):
            return Request._to_nobody()
        with translated():
            return Request._of(self._native.start_send_object(obj, dest, tag))

    def recv(
        self,
        buf: Any = None,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """See mpi4py. `buf` may be a number of bytes, which is not used."""
        if buf is not None:
            _check_size(buf)
            warnings.warn("the 'buf' argument is deprecated", UserWarning, stacklevel=2)
        value, received = None, NOBODY
        if self._reaches(source, tag, ANY_SOURCE, ANY_TAG):
            with translated():
                message = self._native.recv_bytes(source, tag)
            value, received = _unpickled(message)
        if status is not None:
            status._set(received)
        return value

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """See mpi4py. `buf` may be a number of bytes, which is not used."""
        _check_size(buf)
        if not self._reaches(source, tag, ANY_SOURCE, ANY_TAG):
            return Request._to_nobody()
        with translated():
            native = self._native.start_recv_bytes(source, tag)
        return Request._of(native, _unpickled)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """See mpi4py."""
        self._reaches(source, recvtag, ANY_SOURCE, ANY_TAG)  # raises before anything is sent
        sent = self.isend(sendobj, dest, sendtag)
        value = self.recv(recvbuf, source, recvtag, status)
        sent.wait()
        return value

    def _probed(self, source: int, tag: int) -> tuple[int, int, int] | None:
        try:
            return self._native.probe(source, tag)
        except FabricConnectionError as error:
            if _LEFT not in str(error):
                raise
            return None  # ranks that have left in order send nothing, and are no error in mpi4py

    def _reaches(self, rank: int, tag: int, lowest: int = 0, lowest_tag: int = 0) -> bool:
        """Return whether there is a rank at the other end; raise if it or the tag is wrong."""
        size = self._native.size
        if tag < lowest_tag:
            raise Exception(ERR_TAG, f"there is no tag {tag}: tags are 0 and above")
        if rank == PROC_NULL:
            return False
        if not lowest <= rank < size:
            raise Exception(ERR_RANK, f"there is no rank {rank}: ranks are 0 to {size - 1}")
        return True


def _check_size(buf: Any) -> None:
    if buf is not None and not isinstance(buf, int | np.integer):
        raise NotOfferedError("a buffer for the pickle of a received object")


def _unpickled(message: tuple[memoryview, int, int]) -> tuple[Any, tuple[int, int, int]]:
    """Return the object, None for an empty message, and source, tag and bytes."""
    data, source, tag = message
    return pickle.loads(data) if data.nbytes else None, (source, tag, data.nbytes)
