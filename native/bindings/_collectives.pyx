# cython: language_level=3
"""Collectives. Thin: `rdma_transport.collectives` wraps and documents it."""

import threading

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr, weak_ptr
from libcpp.string cimport string
from libcpp.string_view cimport string_view

from collectives cimport (
    Call, CallQueue, Collective, DType, Envelope, Group, Mesh, MessageRequest, NamedCalls,
    NamedOptions, NameOfDType, Parcel, Patience, Protocol, Receive, ReduceOp, Request, SizeOf,
    getpid, kDTypes, move_group, move_mesh,
)
from fabric cimport Code, FabricDevice, Memory, PollingThread, StartTimeout, Status

from rdma_transport._fabric import FabricStateError, FabricValueError, deadline_in, error_of

# The number of each type of elements, by its name in NumPy.
DTYPES = {(<bytes>NameOfDType(<DType>number)).decode(): number for number in range(kDTypes)}

# What all ranks must have in common.
PROTOCOL = Protocol().decode()

BARRIER = <int>Collective.kBarrier
ALL_REDUCE = <int>Collective.kAllReduce
REDUCE_SCATTER = <int>Collective.kReduceScatter
ALL_GATHER = <int>Collective.kAllGather
BROADCAST = <int>Collective.kBroadcast
ALL_TO_ALL = <int>Collective.kAllToAll
GATHER = <int>Collective.kGather
SCATTER = <int>Collective.kScatter
REDUCE = <int>Collective.kReduce
EXCHANGE = <int>Collective.kExchange
INVALID = <int>Collective.kInvalid


def start_timeout() -> float:
    """Return how long all ranks may take to meet, in seconds."""
    return StartTimeout() / 1e9


class MessageTruncatedError(FabricValueError):
    """A message is longer than the array that was to receive it; it is lost."""


include "waiting.pxi"


cdef int check_ours(int owner) except -1:
    if owner != getpid():
        raise FabricStateError(
            "the communicator belongs to the process that forked this one; connect one here"
        )
    return 0


cdef class RawDevice:
    """A device and its polling thread."""

    cdef shared_ptr[PollingThread] thread
    cdef object __weakref__

    def __init__(self, fabric: str) -> None:
        cdef string name = fabric.encode()
        cdef Status status
        with nogil:
            status = PollingThread.Open(name, &self.thread)
        check(status)

    def __dealloc__(self):
        with nogil:
            self.thread.reset()

    def close(self) -> None:
        with nogil:
            self.thread.get().Close()


cdef class Registered:
    """Memory that the other members map. Has the buffer protocol; lives as long as its views."""

    cdef shared_ptr[Memory] memory
    cdef weak_ptr[CallQueue] queue  # it ends with its group

    def __init__(self) -> None:
        raise TypeError("allocate it with RawGroup.allocate()")

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.memory.get().data(), self.memory.get().length(), 0,
                          flags)

    def __dealloc__(self):
        if not self.memory or not self.memory.get().Ours():
            return
        cdef shared_ptr[CallQueue] queue = self.queue.lock()
        if queue:
            queue.get().mesh().Withdraw(self.memory.get().key())


cdef class Arrays:
    """The buffers of a call."""

    cdef Py_buffer input
    cdef Py_buffer output
    cdef cbool has_input
    cdef cbool has_output

    def __dealloc__(self):
        if self.has_input:
            PyBuffer_Release(&self.input)
        if self.has_output:
            PyBuffer_Release(&self.output)

    cdef int get(self, source, target, cbool writes=True) except -1:
        if source is not None:
            PyObject_GetBuffer(source, &self.input, PyBUF_SIMPLE)
            self.has_input = True
        if target is not None:
            PyObject_GetBuffer(target, &self.output, PyBUF_WRITABLE if writes else PyBUF_SIMPLE)
            self.has_output = True
        return 0

    cdef Parcel piece(self):
        cdef Parcel piece
        piece.source, piece.sent = <const char*>self.input.buf, self.input.len
        piece.to, piece.received = <char*>self.output.buf, self.output.len
        return piece

    cdef int describe(self, Call* call, int size, int rank) except -1:
        """Set count and arrays; raise FabricValueError if their sizes do not fit."""
        cdef cbool at_root = rank == call.root
        cdef Collective kind = call.collective
        cdef size_t item = SizeOf(call.dtype), members = size
        cdef size_t given = self.input.len if self.has_input else 0
        cdef size_t taken = self.output.len if self.has_output else 0
        cdef size_t part = taken if kind == Collective.kReduceScatter else given
        cdef size_t first, second
        cdef cbool fits
        if kind == Collective.kBroadcast:
            part = taken
            fits = True
        elif kind == Collective.kReduceScatter:
            fits = given == taken * members
        elif kind == Collective.kAllGather:
            fits = taken == given * members
        elif kind == Collective.kGather:
            fits = taken == given * members if at_root else not self.has_output
        elif kind == Collective.kScatter:
            part = taken
            fits = given == taken * members if at_root else not self.has_input
        elif kind == Collective.kReduce and not at_root:
            fits = not self.has_output
        elif kind == Collective.kAllToAll:
            fits = given == taken and given % (item * members) == 0
            part = given // members
        else:
            fits = given == taken
        if not fits:
            raise FabricValueError(
                f"the input has {given // item} elements and the output {taken // item}, which "
                f"does not fit for {size} ranks"
            )
        first, second = <size_t>self.input.buf, <size_t>self.output.buf
        if (self.has_input and first % min(item, 8)) or (self.has_output and second % min(item, 8)):
            raise FabricValueError("the array is not aligned; pass a copy of it")
        if given and taken and first < second + taken and second < first + given:
            if kind in (Collective.kAllGather, Collective.kGather):
                fits = first == second + rank * part
            elif kind in (Collective.kReduceScatter, Collective.kScatter):
                fits = second == first + rank * part
            else:
                fits = first == second
            if not fits:
                raise FabricValueError("input and output overlap; give separate arrays")
        call.count = part // item
        call.input = <const char*>self.input.buf
        call.output = <char*>self.output.buf
        return 0


cdef class RawRequest:
    """A non-blocking collective."""

    cdef shared_ptr[Request] request
    cdef list arrays
    cdef int owner

    def __init__(self) -> None:
        raise TypeError("requests are made by RawGroup.start()")

    def done(self) -> bool:
        check_ours(self.owner)
        return self.request.get().done()

    def wait(self, timeout) -> None:
        cdef Patience patience = patience_of(timeout)
        cdef cbool waits = False
        cdef Status status
        check_ours(self.owner)
        with nogil:
            status = self.request.get().Wait(patience, &waits)
        check(status)


cdef class RawMessage:
    """A send or a receive. Has the buffer protocol if it received into memory of its own."""

    cdef shared_ptr[MessageRequest] request
    cdef Arrays arrays

    def __init__(self) -> None:
        raise TypeError("requests are made by RawGroup")

    def done(self) -> bool:
        cdef cbool done
        with nogil:
            done = self.request.get().Test()
        return done

    def wait(self, timeout) -> tuple | None:
        """Return source, tag and bytes of a message that was received."""
        cdef Patience patience = patience_of(timeout)
        cdef Receive* receive = self.request.get().receive()
        cdef Status status
        with nogil:
            status = self.request.get().Wait(patience)
        if receive != NULL and status.code() == Code.kInvalidArgument:
            raise MessageTruncatedError(status.message().decode(errors="replace"))
        check(status)
        if receive == NULL:
            return None
        return receive.message.source, receive.message.tag, receive.message.length

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        cdef Receive* receive = self.request.get().receive()
        if receive == NULL or self.arrays is not None:
            raise BufferError("the message was not received into memory of its own")
        PyBuffer_FillInfo(buffer, self, receive.buffer, receive.message.length, 1, flags)


cdef class RawNamed:
    """Collectives that are matched by name, which operations of TensorFlow find by a number."""

    cdef RawDevice device  # is polled as long as they exist
    cdef shared_ptr[NamedCalls] calls
    cdef int number
    cdef int owner
    cdef object __weakref__

    def __init__(self) -> None:
        raise TypeError("publish a group with RawGroup.publish()")

    def __dealloc__(self):
        if not self.calls:
            return
        if self.owner != getpid():  # in a forked child nothing may be destroyed
            new shared_ptr[NamedCalls](self.calls)
            return
        self.close("the group was dropped")

    def close(self, reason: str) -> None:
        """End all calls, with errors; the others learn the reason if they wait for this rank."""
        cdef shared_ptr[NamedCalls] calls, none
        cdef string why = reason.encode()
        if self.owner != getpid():
            return
        calls.swap(self.calls)
        if not calls:
            return
        with nogil:
            if NamedCalls.Find(self.number).get() == calls.get():
                NamedCalls.Publish(self.number, none)
            calls.get().Close(why)
            calls.reset()


cdef void end_capsule(object capsule) noexcept:
    cdef shared_ptr[CallQueue]* queue = <shared_ptr[CallQueue]*>PyCapsule_GetPointer(
        capsule, b"rdma_transport.CallQueue"
    )
    del queue


@cython.no_gc  # which would empty `pending` before __dealloc__ has ended the use of its arrays
cdef class RawGroup:
    """One member's end of a group: first addresses(), connect() and finish(), then the others."""

    cdef RawDevice device
    cdef unique_ptr[Mesh] mesh
    cdef shared_ptr[CallQueue] queue
    cdef list pending  # calls that may not be done
    cdef size_t most
    cdef int owner
    cdef readonly int rank
    cdef readonly int size
    cdef object __weakref__

    def __init__(self, RawDevice device not None, rank: int, size: int) -> None:
        cdef shared_ptr[FabricDevice] opened
        self.device = device
        self.pending = []
        self.most = 1
        self.owner = getpid()
        self.rank, self.size = rank, size
        check(device.thread.get().Device(&opened))
        check(Mesh.Open(opened, rank, size, device.thread.get().peer_timeout(), &self.mesh))
        self.mesh.get().PollWhileWaiting(PollingThread.Help(device.thread))

    def __dealloc__(self):
        if self.owner != getpid():  # in a forked child nothing may be destroyed
            self.mesh.release()
            new shared_ptr[CallQueue](self.queue)
            return
        with nogil:
            if self.queue:
                self.queue.get().Close(b"the communicator was dropped")
            self.queue.reset()
            self.mesh.reset()

    def addresses(self) -> list:
        return [self.mesh.get().Address(peer) for peer in range(self.size)]

    def connect(self, peer: int, address: bytes, key: bytes) -> None:
        check(self.mesh.get().Connect(peer, address, key), f"connecting to rank {peer}: ")

    def finish(self, timeout) -> None:
        cdef Patience patience = patience_of(timeout)
        cdef unique_ptr[Group] group
        cdef Status status
        with nogil:
            status = self.mesh.get().WaitReady(patience)
        check(status, "connecting: ")
        group.reset(new Group(move_mesh(self.mesh), self.device.thread.get().spin()))
        self.queue.reset(new CallQueue(move_group(group)))

    def publish(self, number: int, ranks: list, stall_warning: float | None = None,
                stall_timeout: float | None = None) -> RawNamed:
        """Give up the group to collectives that are matched by name.

        Times are in seconds, by default those of the settings.
        """
        cdef shared_ptr[CallQueue] queue = self.opened()
        cdef RawNamed made = RawNamed.__new__(RawNamed)
        cdef NamedOptions options
        for rank in ranks:
            options.ranks.push_back(rank)
        options.stall_warning = self.device.thread.get().stall_warning()
        options.stall_timeout = self.device.thread.get().stall_timeout()
        if stall_warning is not None:
            options.stall_warning = <int64_t>(stall_warning * 1e9)
        if stall_timeout is not None:
            options.stall_timeout = <int64_t>(stall_timeout * 1e9)
        made.device, made.number, made.owner = self.device, number, self.owner
        self.queue.reset()
        made.calls.reset(new NamedCalls(queue.get().TakeGroup(), options))
        NamedCalls.Publish(number, made.calls)
        return made

    def capsule(self) -> object:
        """Return the group for another module, which must keep this object, too."""
        return PyCapsule_New(
            new shared_ptr[CallQueue](self.opened()), b"rdma_transport.CallQueue", end_capsule
        )

    cdef shared_ptr[CallQueue] opened(self) except *:
        if not self.queue:
            raise FabricStateError("the communicator is closed")
        check_ours(self.owner)
        return self.queue

    cdef Arrays describe(self, Call* call, source, target):
        cdef Arrays arrays = Arrays()
        cdef cbool writes = call.collective != Collective.kBroadcast or call.root != self.rank
        arrays.get(source, target, writes)
        arrays.describe(call, self.size, self.rank)
        return arrays

    cdef list pieces(self, Call* call, parts, targets):
        """Set what an exchange sends and receives."""
        cdef Arrays arrays
        cdef list kept = []
        if len(parts) != self.size or len(targets) != self.size:
            raise FabricValueError(
                f"{len(parts)} arrays to send and {len(targets)} to receive for {self.size} ranks"
            )
        for part, target in zip(parts, targets):
            arrays = Arrays()
            arrays.get(part, target)
            kept.append(arrays)
            call.pieces.push_back(arrays.piece())
        return kept

    cdef list prepare(self, Call* call, int kind, int dtype, int op, int root, source, target):
        """Return the arrays of a call; raise ValueError if they do not fit."""
        call.collective = <Collective>kind
        call.dtype = <DType>dtype
        call.op = <ReduceOp>op
        call.root = root
        if kind == EXCHANGE:
            return self.pieces(call, source, target)
        return [self.describe(call, source, target)]

    def run(self, int kind, int dtype, int op, int root, source, target, timeout) -> None:
        """`source` and `target` are buffers or None; of an exchange lists of them, by rank."""
        cdef shared_ptr[CallQueue] queue = self.opened()
        cdef Patience patience = patience_of(timeout)
        cdef Call call
        cdef Status status
        cdef list arrays = None
        error = None
        try:
            arrays = self.prepare(&call, kind, dtype, op, root, source, target)
        except (ValueError, BufferError) as wrong:
            call.pieces.clear()
            call.collective = Collective.kInvalid  # the others must not wait
            error = wrong
        with nogil:
            status = queue.get().Run(call, patience)
        if error is not None:
            raise FabricValueError(str(error)) from None
        check(status)

    def start(self, int kind, int dtype, int op, int root, source, target, timeout) -> RawRequest:
        cdef RawRequest made = RawRequest.__new__(RawRequest)
        cdef shared_ptr[CallQueue] queue = self.opened()
        cdef Patience patience = patience_of(timeout)
        cdef Call call
        made.owner = self.owner
        try:
            made.arrays = self.prepare(&call, kind, dtype, op, root, source, target)
        except (ValueError, BufferError) as wrong:
            call.pieces.clear()
            call.collective = Collective.kInvalid
            queue.get().Start(call, patience.deadline)
            raise FabricValueError(str(wrong)) from None
        made.request = queue.get().Start(call, patience.deadline)
        self.keep(made)
        return made

    def allocate(self, nbytes: int) -> Registered:
        cdef Registered made = Registered.__new__(Registered)
        cdef shared_ptr[CallQueue] queue = self.opened()
        cdef Status status
        cdef size_t length = nbytes
        with nogil:
            status = self.device.thread.get().Allocate(length, False, &made.memory)
        check(status)
        check(queue.get().mesh().Share(made.memory.get().key(), made.memory.get().length()))
        made.queue = weak_ptr[CallQueue](queue)
        return made

    cdef int keep(self, made) except -1:
        """Keep the arrays of a call until it is done, even if the caller drops it."""
        if made.done():
            return 0
        if len(self.pending) >= self.most:
            before = self.pending
            self.pending = []  # done() lets other threads run, which append to this one
            waiting = [each for each in before if not each.done()]
            self.pending.extend(waiting)
            self.most = 2 * len(waiting) + 1
        self.pending.append(made)
        return 0

    cdef finish_message(self, RawMessage started, timeout):
        """Wait for a message; withdraw a receive that does not end."""
        try:
            return started.wait(timeout)
        except BaseException:
            if not started.request.get().Cancel():
                self.keep(started)
            raise

    cdef RawMessage post_send(self, int peer, int tag, data, cbool waits):
        """Return a message without a request if the data has been copied."""
        cdef shared_ptr[CallQueue] queue = self.opened()
        cdef RawMessage made = RawMessage.__new__(RawMessage)
        cdef string_view view
        cdef Status status
        made.arrays = Arrays()
        made.arrays.get(data, None)
        view = string_view(<const char*>made.arrays.input.buf, <size_t>made.arrays.input.len)
        with nogil:
            status = queue.get().mesh().Send(peer, tag, view, waits, &made.request)
        check(status)
        return made

    def start_send(self, peer: int, tag: int, data) -> RawMessage | None:
        """Return None if the data has been copied."""
        cdef RawMessage made = self.post_send(peer, tag, data, False)
        if not made.request:
            return None
        self.keep(made)
        return made

    def send(self, peer: int, tag: int, data, timeout) -> None:
        cdef RawMessage made = self.post_send(peer, tag, data, True)
        if made.request:
            self.finish_message(made, timeout)

    cdef RawMessage post_receive(self, int source, int tag, target):
        cdef shared_ptr[CallQueue] queue = self.opened()
        cdef RawMessage made = RawMessage.__new__(RawMessage)
        cdef char* buffer = NULL
        cdef uint64_t capacity = 0
        cdef Status status
        if target is not None:
            made.arrays = Arrays()
            made.arrays.get(None, target)
            buffer = <char*>made.arrays.output.buf
            capacity = made.arrays.output.len
        with nogil:
            status = queue.get().mesh().Receive(source, tag, buffer, capacity, &made.request)
        check(status)
        return made

    def start_receive(self, source: int, tag: int, target) -> RawMessage:
        """Receive into memory of its own if the target is None."""
        cdef RawMessage made = self.post_receive(source, tag, target)
        self.keep(made)
        return made

    def receive(self, source: int, tag: int, target, timeout) -> tuple:
        """As start_receive(), then wait(): return the message, and what it returned."""
        cdef RawMessage made = self.post_receive(source, tag, target)
        return made, self.finish_message(made, timeout)

    def probe(self, source: int, tag: int) -> tuple | None:
        cdef shared_ptr[CallQueue] queue = self.opened()
        cdef int sender = source, mark = tag
        cdef Envelope envelope
        cdef cbool found = False
        cdef Status status
        with nogil:
            status = queue.get().mesh().Probe(sender, mark, NULL, &found, &envelope)
        check(status)
        return (envelope.source, envelope.tag, envelope.length) if found else None

    def wait_for_message(self, source: int, tag: int, timeout) -> tuple:
        cdef shared_ptr[CallQueue] queue = self.opened()
        cdef Patience patience = patience_of(timeout)
        cdef int sender = source, mark = tag
        cdef Envelope envelope
        cdef cbool found = False
        cdef Status status
        with nogil:
            status = queue.get().mesh().Probe(sender, mark, &patience, &found, &envelope)
        check(status)
        return envelope.source, envelope.tag, envelope.length

    def close(self, reason: str) -> None:
        cdef shared_ptr[CallQueue] queue = self.queue
        cdef string why = reason.encode()
        if not queue or self.owner != getpid():
            return
        self.queue.reset()
        cdef Status status
        with nogil:
            status = queue.get().mesh().Drain(interrupted)
            queue.get().Close(why)
            queue.reset()
        if status.code() == Code.kCancelled:
            check(status)
