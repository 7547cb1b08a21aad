# cython: language_level=3
"""The fabric. Thin: `rdma_transport.fabric` wraps and documents it."""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals
from cython.operator cimport dereference
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.vector cimport vector

from fabric cimport (
    BlockingChannel, CMeter, Code, CUncachedCopy, FabricDevice, Fabrics, Found, Measured, Memory, Now,
    OpenFabric, Plan, PollingThread, Registration, Role, Settings, Status, Test, Transfer,
)

# The interval in which a wait checks for signals, such as Ctrl-C, in nanoseconds.
cdef int64_t SLICE = 100_000_000
# Copying as many takes no longer than releasing the interpreter lock and taking it again.
cdef uint64_t FEW_BYTES = 4096


cdef dict registered_fabrics():
    cdef vector[Registration] fabrics = Fabrics()
    return {fabric.name.decode(): fabric.description.decode() for fabric in fabrics}


# Name and description of each fabric, in order of preference.
FABRICS = registered_fabrics()


class FabricError(Exception):
    """The base class of all errors of the fabric. The message says what went wrong."""


class FabricStateError(FabricError, RuntimeError):
    """The call is not possible now: not connected, closed, forked, or an internal error."""


class FabricConnectionError(FabricError, ConnectionError):
    """The peer cannot be reached, or the channel has ended. The message says why."""


class FabricTimeoutError(FabricError, TimeoutError):
    """The timeout expired."""


class FabricValueError(FabricError, ValueError):
    """An argument is invalid: a range outside its region, or a malformed address."""


class FabricAccessError(FabricError, PermissionError):
    """This process has no permission to use the memory or the device."""


class FabricResourceError(FabricError, OSError):
    """A resource is exhausted: memory, lockable memory, or room for notifications."""


class RegionGoneError(FabricError, LookupError):
    """The peer has released the region."""


for _error in (
    FabricError, FabricStateError, FabricConnectionError, FabricTimeoutError, FabricValueError,
    FabricAccessError, FabricResourceError, RegionGoneError,
):
    _error.__module__ = "rdma_transport.fabric"


def error_of(int number, text: str) -> FabricError:
    """Return the exception for the status code `number`."""
    code = <Code>number
    if code == Code.kInvalidArgument:
        return FabricValueError(text)
    if code == Code.kDeadlineExceeded:
        return FabricTimeoutError(text)
    if code == Code.kNotFound:
        return RegionGoneError(text)
    if code == Code.kPermissionDenied:
        return FabricAccessError(text)
    if code == Code.kResourceExhausted:
        return FabricResourceError(text)
    if code in (Code.kCancelled, Code.kAborted, Code.kUnavailable, Code.kDataLoss):
        return FabricConnectionError(text)
    return FabricStateError(text)


cdef object error_from(Status status, str context):
    """Return the exception for `status`; `context` precedes its message."""
    return error_of(<int>status.code(), context + status.message().decode(errors="replace"))


cdef int check(Status status, str context="") except -1:
    if not status.ok():
        raise error_from(status, context)
    return 0


def deadline_in(timeout: float | None) -> int:
    """Return the time of Now() after `timeout` seconds; raise FabricValueError."""
    if timeout is None:
        return INT64_MAX
    if not timeout >= 0:
        raise FabricValueError(f"a timeout of {timeout} seconds")
    return Now() + <int64_t>(min(timeout, 1e9) * 1e9)


cdef int64_t slice_of(int64_t deadline) noexcept:
    return min(deadline, Now() + SLICE)


cdef cbool again(Status status, int64_t deadline) except? True:
    """Return whether to continue a wait that ended like this. Runs pending signal handlers."""
    PyErr_CheckSignals()
    return status.code() == Code.kDeadlineExceeded and Now() < deadline


cdef class Region:
    """Registered memory with the buffer protocol: `np.frombuffer(region, np.float32)` is a view.

    The memory lives as long as the region or a view of it, even after its device was closed.
    """

    cdef shared_ptr[Memory] memory

    def __init__(self) -> None:
        raise TypeError("regions are made by Device.allocate()")

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.memory.get().data(), self.memory.get().length(), 0,
                          flags)

    def __len__(self) -> int:
        return self.nbytes

    def __repr__(self) -> str:
        access = "writable by peers" if self.writable_by_peers else "readable by peers"
        return f"<Region of {self.nbytes} bytes, {access}>"

    @property
    def nbytes(self) -> int:
        return self.memory.get().length()

    @property
    def key(self) -> int:
        return self.memory.get().key()

    @property
    def writable_by_peers(self) -> bool:
        return self.memory.get().writable()


cdef int check_inside(Region region, uint64_t at, uint64_t length) except -1:
    cdef uint64_t all = region.memory.get().length()
    if length == 0 or at > all or length > all - at:
        raise FabricValueError(f"{length} bytes at {at} are not inside a region of {all} bytes")
    return 0


cdef class Ticket:
    """A read or write in progress."""

    cdef shared_ptr[BlockingChannel] channel
    cdef shared_ptr[Transfer] transfer

    def __init__(self) -> None:
        raise TypeError("tickets are made by a channel's start_read() and start_write()")

    @property
    def done(self) -> bool:
        return self.channel.get().Done(self.transfer)

    def wait(self, timeout=None) -> None:
        cdef int64_t deadline = deadline_in(timeout)
        cdef int64_t until
        cdef Status status
        while True:
            until = slice_of(deadline)
            with nogil:
                status = self.channel.get().Wait(self.transfer, until)
            if not again(status, deadline):
                break
        check(status)


cdef class RawChannel:
    """A channel; keeps its device open."""

    cdef shared_ptr[BlockingChannel] channel
    cdef RawDevice device

    def __init__(self) -> None:
        raise TypeError("channels are made by Device.open_channel()")

    def __dealloc__(self):
        if self.channel:
            self.channel.get().Close(b"its channel was dropped")

    def address(self) -> bytes:
        cdef string address
        check(self.channel.get().Address(&address))
        return address

    def connect(self, peer_address: bytes, active: bool, key: bytes) -> None:
        cdef string peer = peer_address
        cdef string secret = key
        cdef cbool first = active
        cdef Status status
        with nogil:
            status = self.channel.get().Connect(peer, first, secret)
        check(status)

    def fabric(self) -> str:
        return self.channel.get().FabricName().decode()

    def route(self) -> str:
        return self.channel.get().Route().decode(errors="replace")

    def wait_connected(self, timeout) -> None:
        cdef int64_t deadline = deadline_in(timeout)
        cdef int64_t until
        cdef Status status
        while True:
            until = slice_of(deadline)
            with nogil:
                status = self.channel.get().WaitConnected(until)
            if not again(status, deadline):
                break
        check(status, "connecting: ")

    def share(self, Region region not None) -> None:
        check(self.channel.get().Share(region.memory))

    def wait_remote(self, key: int, timeout) -> None:
        cdef uint64_t name = key
        cdef int64_t deadline = deadline_in(timeout)
        cdef int64_t until
        cdef shared_ptr[Memory] scratch
        cdef Status status
        check(self.device.thread.get().Scratch(&scratch))
        while True:
            until = slice_of(deadline)
            with nogil:
                status = self.channel.get().WaitRemote(name, scratch, until)
            if not again(status, deadline):
                break
        check(status, "the peer's region: ")

    def copy(self, write: bool, Region region not None, at: int, key: int, offset: int,
             nbytes: int) -> bool:
        """Make the whole transfer now, if that is possible; otherwise call start()."""
        cdef cbool writes = write, copied
        cdef uint64_t local = at, name = key, there = offset, length = nbytes
        check_inside(region, local, length)
        if length <= FEW_BYTES:
            return self.channel.get().Copy(writes, region.memory, local, name, there, length)
        with nogil:
            copied = self.channel.get().Copy(writes, region.memory, local, name, there, length)
        return copied

    def start(self, write: bool, Region region not None, at: int, key: int, offset: int,
              nbytes: int) -> Ticket:
        cdef Ticket ticket = Ticket.__new__(Ticket)
        cdef cbool writes = write
        cdef uint64_t local = at, name = key, there = offset, length = nbytes
        cdef Status status
        check_inside(region, local, length)
        ticket.channel = self.channel
        with nogil:
            status = self.channel.get().Start(writes, region.memory, local, name, there, length,
                                           &ticket.transfer)
        check(status)
        return ticket

    def notify(self, message: bytes) -> None:
        cdef string_view view = string_view(<const char*>message, <size_t>len(message))
        check(self.channel.get().Notify(view))

    def receive(self, timeout) -> bytes:
        cdef int64_t deadline = deadline_in(timeout)
        cdef int64_t until
        cdef string note
        cdef Status status
        while True:
            until = slice_of(deadline)
            with nogil:
                status = self.channel.get().Receive(until, &note)
            if not again(status, deadline):
                break
        check(status, "no notification: " if status.code() == Code.kDeadlineExceeded else "")
        return note

    def close(self, reason: str) -> None:
        self.channel.get().Close(reason.encode())


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

    def summary(self) -> str:
        return self.thread.get().summary().decode(errors="replace")

    def allocate(self, nbytes: int, writable_by_peers: bool) -> Region:
        cdef Region region = Region.__new__(Region)
        cdef cbool writable = writable_by_peers
        cdef Status status
        if nbytes < 0:
            raise FabricValueError(f"a region cannot have {nbytes} bytes")
        cdef size_t length = nbytes
        with nogil:
            status = self.thread.get().Allocate(length, writable, &region.memory)
        check(status)
        return region

    def open_channel(self) -> RawChannel:
        cdef RawChannel made = RawChannel.__new__(RawChannel)
        cdef Status status
        with nogil:
            status = self.thread.get().OpenChannel(&made.channel)
        check(status)
        made.device = self
        return made

    def close(self) -> None:
        with nogil:
            self.thread.get().Close()


cdef dict TESTS = {
    "notify_latency": <int>Test.kNotifyLatency,
    "write_latency": <int>Test.kWriteLatency,
    "read_latency": <int>Test.kReadLatency,
    "write_bandwidth": <int>Test.kWriteBandwidth,
    "read_bandwidth": <int>Test.kReadBandwidth,
    "notify_rate": <int>Test.kNotifyRate,
    "order": <int>Test.kOrder,
}


cdef class Meter:
    """One end of a measurement, on a device of its own that only these calls poll."""

    cdef unique_ptr[FabricDevice] device
    cdef shared_ptr[CMeter] meter

    def __init__(self, fabric: str, largest: int) -> None:
        cdef Settings settings
        check(OpenFabric(fabric.encode(), &settings, &self.device))
        check(CMeter.Open(self.device.get(), largest, &self.meter))

    def __dealloc__(self):
        # The channel must be destroyed before its device.
        self.meter.reset()
        self.device.reset()

    def summary(self) -> str:
        return dereference(self.device).Summary().decode(errors="replace")

    def address(self) -> bytes:
        return self.meter.get().Address()

    def fabric(self) -> str:
        return (<bytes>self.meter.get().fabric()).decode()

    def route(self) -> str:
        return self.meter.get().Route().decode(errors="replace")

    def connect(self, peer_address: bytes, active: bool, key: bytes = b"") -> None:
        cdef string peer = peer_address
        cdef Role role = Role.kActive if active else Role.kPassive
        check(self.meter.get().Connect(<string_view>peer, role, key))

    def introduce(self, timeout: float) -> None:
        cdef int64_t nanoseconds = <int64_t>(timeout * 1e9)
        cdef Status status
        with nogil:
            status = self.meter.get().Introduce(nanoseconds)
        check(status, "connecting: ")

    cdef Plan plan(self, test, nbytes, iterations, timeout, duration=0.0) except *:
        cdef Plan plan
        if test:
            plan.test = <Test><int>TESTS[test]
        plan.bytes = nbytes
        plan.iterations = iterations
        plan.timeout = <int64_t>(timeout * 1e9)
        plan.duration = <int64_t>(duration * 1e9)
        return plan

    def run(self, test: str, nbytes: int, iterations: int, timeout: float,
            duration: float = 0.0) -> tuple:
        """Return times in seconds, and the number of bytes that differ from those sent.

        A latency has one time per iteration, any other test one in total. "order" counts faults
        instead, and ends after `duration` seconds, if that is not 0.
        """
        cdef Plan plan = self.plan(test, nbytes, iterations, timeout, duration)
        cdef Measured measured
        cdef Status status
        with nogil:
            status = self.meter.get().Run(plan, &measured)
        check(status, f"{test} of {nbytes} bytes: ")
        if measured.samples.empty():
            return [measured.elapsed / 1e9], measured.wrong
        return [sample / 1e9 for sample in measured.samples], measured.wrong

    def serve(self, test: str, nbytes: int, iterations: int, timeout: float) -> None:
        cdef Plan plan = self.plan(test, nbytes, iterations, timeout)
        cdef Status status
        with nogil:
            status = self.meter.get().Serve(plan)
        check(status, f"{test} of {nbytes} bytes: ")

    def found(self) -> dict:
        """Return what the last serve() of "order" found, also if it failed."""
        cdef Found found = self.meter.get().found()
        return {
            "notes": found.notes, "writes": found.writes, "bytes": found.bytes,
            "early": found.early, "corrupt": found.corrupt, "misordered": found.misordered,
            "repeated": found.repeated, "missing": found.missing,
            "first": found.first.decode(errors="replace"),
        }

    def copy(self, nbytes: int, iterations: int) -> list:
        cdef Plan plan = self.plan("", nbytes, iterations, 0.0)
        cdef Measured measured
        cdef Status status
        with nogil:
            status = self.meter.get().Copy(plan, &measured)
        check(status)
        return [measured.elapsed / 1e9]

    def close(self) -> None:
        with nogil:
            self.meter.get().Close()


cdef class UncachedCopy:
    """``memcpy()`` over more memory than the caches hold, in blocks of up to ``largest`` bytes."""

    cdef CUncachedCopy copy

    def __init__(self, largest: int) -> None:
        cdef uint64_t most = largest
        cdef Status status
        with nogil:
            status = self.copy.Allocate(most)
        check(status)

    def run(self, nbytes: int, iterations: int) -> float:
        """Return the seconds that ``iterations`` copies took."""
        cdef uint64_t size = nbytes
        cdef uint64_t times = iterations
        cdef int64_t elapsed = 0
        cdef Status status
        with nogil:
            status = self.copy.Run(size, times, &elapsed)
        check(status)
        return elapsed / 1e9
