"""Messages between two ranks, by mpi4py's names."""

import time
from typing import Any

from rdma_transport.collectives.communicator import Communicator
from rdma_transport.mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL, translated
from rdma_transport.mpi.datatypes import array_in
from rdma_transport.mpi.request import Request, Status

_POLL = 0.0005  # seconds


class Messages:
    """The calls of a communicator that concern two ranks."""

    _native: Communicator

    def __init__(self, native: Communicator) -> None:
        self._native = native

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """See mpi4py."""
        if dest != PROC_NULL:
            with translated():
                self._native.send(array_in(buf), dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """See mpi4py. The message is buffered, so the request is done at once."""
        if dest == PROC_NULL:
            return Request()
        with translated():
            return Request(self._native.start_send(array_in(buf), dest, tag))

    def Recv(
        self,
        buf: Any,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """See mpi4py."""
        self.Irecv(buf, source, tag).Wait(status)

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """See mpi4py."""
        if source == PROC_NULL:
            return Request()
        with translated():
            native = self._native.start_recv(array_in(buf), source, tag)
        return Request(native, _set_status)

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
        self.Isend(sendbuf, dest, sendtag)
        self.Recv(recvbuf, source, recvtag, status)

    def Iprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        """See mpi4py."""
        with translated():
            found = self._native.probe(source, tag)
        if found is not None and status is not None:
            status.set(*found)
        return found is not None

    def Probe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> bool:
        """See mpi4py."""
        while not self.Iprobe(source, tag, status):
            time.sleep(_POLL)
        return True

    iprobe, probe = Iprobe, Probe

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """See mpi4py."""
        if dest != PROC_NULL:
            with translated():
                self._native.send_object(obj, dest, tag)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """See mpi4py. The message is buffered, so the request is done at once."""
        if dest == PROC_NULL:
            return Request()
        with translated():
            return Request(self._native.start_send_object(obj, dest, tag))

    def recv(
        self,
        buf: Any = None,
        source: int = ANY_SOURCE,
        tag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """See mpi4py. `buf` is not used."""
        return self.irecv(buf, source, tag).wait(status)

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """See mpi4py. `buf` is not used."""
        if source == PROC_NULL:
            return Request()
        with translated():
            return Request(self._native.start_recv_object(source, tag), _take_object)

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
        self.isend(sendobj, dest, sendtag)
        return self.recv(None, source, recvtag, status)


def _set_status(received: tuple[int, int, int], status: Status | None) -> None:
    if status is not None:
        status.set(*received)


def _take_object(received: tuple[Any, int, int], status: Status | None) -> Any:
    value, source, tag = received
    if status is not None:
        status.set(source, tag, 0)
    return value
