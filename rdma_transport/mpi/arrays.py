"""Collectives of buffers, by mpi4py's names."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rdma_transport.mpi.buffers import Elements, counts_of, elements, parts
from rdma_transport.mpi.constants import in_place, translated
from rdma_transport.mpi.objects import ObjectCollectives
from rdma_transport.mpi.operations import SUM, Op, native_op
from rdma_transport.mpi.request import EMPTY, Request


class ArrayCollectives(ObjectCollectives):
    """The upper-case calls of a communicator that concern all ranks.

    What only moves is moved as bytes.
    """

    def Barrier(self) -> None:
        """See mpi4py."""
        with translated():
            self._native.barrier()

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """See mpi4py."""
        with self._arguments(root):
            memory = self._broadcast(buf, root)
        with translated():
            self._native.broadcast(memory, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """See mpi4py."""
        with self._arguments():
            source, target = _reduced(sendbuf, recvbuf)
            name = native_op(op)
        with translated():
            self._native.all_reduce(source, name, target)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """See mpi4py."""
        with self._arguments(root):
            source, target = self._reduced_at(sendbuf, recvbuf, root)
            name = native_op(op)
        with translated():
            self._native.reduce(source, name, root, target)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """See mpi4py."""
        with self._arguments():
            source, target = self._gathered(sendbuf, recvbuf)
        with translated():
            self._native.all_gather(source, target)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """See mpi4py."""
        with self._arguments(root):
            if self._native.rank == root:
                source, target = self._gathered(sendbuf, recvbuf)
            else:
                source, target = _memory(sendbuf), None
        with translated():
            self._native.gather(source, root, target)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """See mpi4py."""
        native = self._native
        with self._arguments(root):
            whole = None
            if native.rank == root:
                whole = elements(sendbuf, writable=in_place(recvbuf), blocks=native.size).memory
            if whole is not None and in_place(recvbuf):
                target = self._part(whole)
            else:
                target = elements(recvbuf, writable=True).memory
        with translated():
            native.scatter(whole, target, root)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """See mpi4py."""
        with self._arguments():
            source, target, place = self._scattered(sendbuf, recvbuf)
            name = native_op(op)
        with translated():
            self._native.reduce_scatter(source, name, target)
        if place is not None:
            place[:] = target

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> None:
        """See mpi4py. Every rank computes the whole result."""
        native = self._native
        if recvcounts is None and not in_place(sendbuf):
            with self._arguments():
                count = np.array([elements(recvbuf, writable=True).count], np.int64)
            with translated():
                recvcounts = native.all_gather(count).reshape(-1).tolist()
        with self._arguments():
            if recvcounts is None:
                raise TypeError("Reduce_scatter needs the counts if it works in place")
            counts = counts_of(recvcounts, native.size)
            received = elements(recvbuf, writable=True)
            sent = received if in_place(sendbuf) else elements(sendbuf, writable=False)
            _check(sent, received, sent.count)
            if sum(counts) != sent.count:
                raise ValueError(f"mismatch in count {sent.count} and sum(counts) {sum(counts)}")
            own = counts[native.rank]
            if own != received.count and not in_place(sendbuf):
                raise ValueError(f"mismatch in receive count {received.count} and own count {own}")
            name = native_op(op)
            source, target = sent.numbers, received.numbers
        with translated():
            result = native.all_reduce(source, name)
        start = sum(counts[: native.rank])
        target[:own] = result[start : start + own]

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """See mpi4py."""
        with self._arguments():
            source, target = self._exchanged(sendbuf, recvbuf)
        with translated():
            self._native.all_to_all(source, target)

    # --- Parts of different sizes ---

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """See mpi4py."""
        native = self._native
        with self._arguments():
            outs = parts(recvbuf, True, native.size)
            own = outs[native.rank] if in_place(sendbuf) else _memory(sendbuf)
        self._exchange([own] * native.size, outs)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """See mpi4py."""
        native = self._native
        with self._arguments(root):
            sent, outs = self._nothing(), self._nothing()
            if native.rank == root:
                outs = parts(recvbuf, True, native.size)
            in_its_place = native.rank == root and in_place(sendbuf)
            sent[root] = outs[root] if in_its_place else _memory(sendbuf)
        self._exchange(sent, outs)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """See mpi4py."""
        native = self._native
        with self._arguments(root):
            sent, outs = self._nothing(), self._nothing()
            if native.rank == root:
                sent = parts(sendbuf, in_place(recvbuf), native.size)
            if native.rank == root and in_place(recvbuf):
                outs[root] = sent[root]
            else:
                outs[root] = elements(recvbuf, writable=True).memory
        self._exchange(sent, outs)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """See mpi4py."""
        native = self._native
        with self._arguments():
            outs = parts(recvbuf, True, native.size)
            if in_place(sendbuf):
                sent = [out.copy() for out in outs]
            else:
                sent = parts(sendbuf, False, native.size)
        self._exchange(sent, outs)

    # --- Non-blocking calls ---

    def Ibarrier(self) -> Request:
        """See mpi4py."""
        with translated():
            return Request._of(self._native.start_barrier())

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        """See mpi4py."""
        with self._arguments(root, waits=False):
            memory = self._broadcast(buf, root)
        with translated():
            return Request._of(self._native.start_broadcast(memory, root))

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """See mpi4py."""
        with self._arguments(waits=False):
            source, target = _reduced(sendbuf, recvbuf)
            name = native_op(op)
        with translated():
            return Request._of(self._native.start_all_reduce(source, name, target))

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Request:
        """See mpi4py."""
        with self._arguments(root, waits=False):
            source, target = self._reduced_at(sendbuf, recvbuf, root)
            name = native_op(op)
        with translated():
            return Request._of(self._native.start_reduce(source, name, root, target))

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        """See mpi4py."""
        with self._arguments(waits=False):
            source, target = self._gathered(sendbuf, recvbuf)
        with translated():
            return Request._of(self._native.start_all_gather(source, target))

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """See mpi4py."""
        with self._arguments(waits=False):
            source, target = self._exchanged(sendbuf, recvbuf)
        with translated():
            return Request._of(self._native.start_all_to_all(source, target))

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """See mpi4py. In place, the result appears when the request is waited for."""
        with self._arguments(waits=False):
            source, target, place = self._scattered(sendbuf, recvbuf)
            name = native_op(op)
        with translated():
            request = self._native.start_reduce_scatter(source, name, target)
        if place is None:
            return Request._of(request)

        def finish(result: Any) -> tuple[None, tuple[int, int, int]]:
            place[:] = result
            return None, EMPTY

        return Request._of(request, finish)

    # --- Arguments ---

    def _broadcast(self, buf: Any, root: int) -> Any:
        return elements(buf, writable=self._native.rank != root).memory

    def _part(self, whole: Any) -> Any:
        """Return the part of an array that belongs to this rank."""
        return whole.reshape(self._native.size, -1)[self._native.rank]

    def _reduced_at(self, sendbuf: Any, recvbuf: Any, root: int) -> tuple[Any, Any]:
        if self._native.rank != root:
            return elements(sendbuf, writable=False).numbers, None
        return _reduced(sendbuf, recvbuf)

    def _gathered(self, sendbuf: Any, recvbuf: Any) -> tuple[Any, Any]:
        target = elements(recvbuf, writable=True, blocks=self._native.size).memory
        if in_place(sendbuf):
            return self._part(target), target
        return _memory(sendbuf), target

    def _exchanged(self, sendbuf: Any, recvbuf: Any) -> tuple[Any, Any]:
        size = self._native.size
        target = elements(recvbuf, writable=True, blocks=size).memory
        if in_place(sendbuf):
            return target, target
        return elements(sendbuf, writable=False, blocks=size).memory, target

    def _scattered(self, sendbuf: Any, recvbuf: Any) -> tuple[Any, Any, Any]:
        """Return input, output, and where the output belongs in the end, or None."""
        size = self._native.size
        if in_place(sendbuf):
            received = elements(recvbuf, writable=True, blocks=size)
            whole, place = received.numbers, received.numbers[: received.count]
            return whole, np.empty_like(place), place
        received = elements(recvbuf, writable=True)
        sent = elements(sendbuf, writable=False, blocks=size)
        _check(sent, received, received.count)
        return sent.numbers, received.numbers, None

    def _nothing(self) -> list[Any]:
        return [np.empty(0, np.uint8) for _ in range(self._native.size)]

    def _exchange(self, sent: list[Any], outs: list[Any]) -> None:
        with translated():
            self._native.exchange(sent, outs)


def _memory(sendbuf: Any) -> Any:
    return elements(sendbuf, writable=False).memory


def _check(sent: Elements, received: Elements, count: int) -> None:
    if sent.datatype != received.datatype:
        raise ValueError("mismatch in send and receive MPI datatypes")
    if sent.count != count:
        raise ValueError(f"mismatch in send count {sent.count} and receive count {count}")


def _reduced(sendbuf: Any, recvbuf: Any) -> tuple[Any, Any]:
    received = elements(recvbuf, writable=True)
    if in_place(sendbuf):
        return received.numbers, received.numbers
    sent = elements(sendbuf, writable=False)
    _check(sent, received, received.count)
    return sent.numbers, received.numbers
