"""One-sided access to remote memory: the fabric under the transport, without TensorFlow.

Each of two processes opens a device and a channel. The processes exchange the channels' addresses
over any out-of-band connection. Then each reads and writes the other's memory, which NumPy can view
as arrays::

    with Device.open() as device:
        channel = device.open_channel()
        ...  # send channel.address to the peer; it connects with active=False and sends its own
        channel.connect(peer_address, active=True)
        channel.wait_connected(timeout=10)
        region = device.allocate(1 << 20)
        array = np.frombuffer(region, np.float32)
        remote = channel.remote(channel.receive(timeout=10))  # the peer's channel.share(...)
        channel.read(remote, into=region)  # array now holds a copy of the peer's memory

Each device has one native thread that makes progress without the interpreter lock. All calls are
thread-safe. Blocking calls release the interpreter lock, and Ctrl-C interrupts them. Timeouts are
in seconds; None means no timeout. Offsets and lengths are in bytes.

A forked child cannot use a device that its parent opened (``FabricStateError``) and sees a copy of
its regions. The child must open its own device.

``FABRICS`` has the name and a description of each fabric, in order of preference.

All errors are subclasses of ``FabricError`` and of the built-in exception that fits.
"""

import atexit
import struct
import weakref
from dataclasses import dataclass, field

from rdma_transport._fabric import (
    FABRICS,
    FabricAccessError,
    FabricConnectionError,
    FabricError,
    FabricResourceError,
    FabricStateError,
    FabricTimeoutError,
    FabricValueError,
    RawChannel,
    RawDevice,
    Region,
    RegionGoneError,
    Ticket,
)

__all__ = [
    "FABRICS",
    "Channel",
    "Device",
    "FabricAccessError",
    "FabricConnectionError",
    "FabricError",
    "FabricResourceError",
    "FabricStateError",
    "FabricTimeoutError",
    "FabricValueError",
    "Region",
    "RegionGoneError",
    "RemoteRegion",
    "Ticket",
]

MIN_KEY = 32  # bytes of the key with which two channels authenticate each other
TIMEOUT = 30.0  # seconds, the default of calls with a timeout
_TOKEN = struct.Struct("<4sQQ?")
_MAGIC = b"rgn1"

_open: "weakref.WeakSet[RawDevice]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop the threads and notify the peers before the interpreter shuts down."""
    for device in list(_open):
        device.close()


@dataclass(frozen=True)
class RemoteRegion:
    """A region of the peer, returned by ``Channel.remote()``. Valid only for that channel."""

    key: int
    nbytes: int
    writable: bool
    channel: "Channel" = field(repr=False)

    def check(self, channel: "Channel", offset: int, nbytes: int) -> None:
        """Raise ``FabricValueError`` if the channel differs or the range is out of bounds."""
        if channel is not self.channel:
            raise FabricValueError("the region belongs to another channel")
        if nbytes < 1 or offset + nbytes > self.nbytes:
            raise FabricValueError(
                f"{nbytes} bytes at offset {offset} are not inside the peer's region "
                f"of {self.nbytes} bytes"
            )


class Channel:
    """An ordered connection to one peer. Keeps its device open.

    Closes at the end of a ``with`` statement, or when garbage-collected.

    After the peer closes it or dies, or the network fails, all calls raise
    ``FabricConnectionError`` with the reason. Shared memory detects a dead peer at once. Verbs
    and libfabric detect it when a transfer to it fails: after the card's retries, or when TCP's
    connection ends.
    """

    def __init__(self, raw: RawChannel) -> None:
        self._raw = raw

    @property
    def address(self) -> bytes:
        """The opaque address that the peer passes to its ``connect()``."""
        return self._raw.address()

    def connect(self, peer_address: bytes, active: bool, key: bytes = b"") -> None:
        """Start connecting. One side is active; the passive side must call this first.

        The active side sends its address. The passive side connects to it and replies with its own
        address. Then the active side connects. `key` is a shared secret of at least 32 bytes, or
        empty. With a key, each side proves to the other that it has the key and the addresses.

        Raise ``FabricConnectionError`` if no fabric reaches that address from here, and
        ``FabricValueError`` if it is not an address.
        """
        if key and len(key) < MIN_KEY:
            raise FabricValueError(
                f"the key has {len(key)} bytes and needs at least {MIN_KEY}; give a longer one"
            )
        self._raw.connect(peer_address, active, key)

    def wait_connected(self, timeout: float | None = TIMEOUT) -> None:
        """Wait until both sides are connected.

        Raise ``FabricTimeoutError`` or ``FabricConnectionError``.
        """
        self._raw.wait_connected(timeout)

    @property
    def fabric(self) -> str:
        """The name of its fabric, a key of ``FABRICS``; empty before ``connect()``."""
        return self._raw.fabric()

    @property
    def route(self) -> str:
        """Human-readable route to the peer; empty before ``connect()``."""
        return self._raw.route()

    def share(self, region: Region) -> bytes:
        """Give the peer access to `region`; return a token that names it.

        The peer passes the token to ``remote()``; any connection can carry it. The peer can write
        only if the region allows it. Access ends with the region or with the channel.
        """
        self._raw.share(region)
        return _TOKEN.pack(_MAGIC, region.key, region.nbytes, region.writable_by_peers)

    def remote(self, token: bytes, timeout: float | None = TIMEOUT) -> RemoteRegion:
        """Wait until the peer's region is accessible, and return it.

        Raise ``FabricValueError`` if the token is malformed, ``FabricTimeoutError`` if the peer did
        not share the region with this channel. Accept tokens only from the peer.
        """
        if len(token) != _TOKEN.size or not token.startswith(_MAGIC):
            raise FabricValueError("the token of the region is malformed")
        _, key, nbytes, writable = _TOKEN.unpack(token)
        self._raw.wait_remote(key, timeout)
        return RemoteRegion(key, nbytes, writable, self)

    def start_read(
        self,
        remote: RemoteRegion,
        offset: int = 0,
        *,
        into: Region,
        at: int = 0,
        nbytes: int | None = None,
    ) -> Ticket:
        """Start copying `nbytes` from `offset` of the peer's region to `at` of `into`.

        By default as many bytes as both regions have from there. `into` stays alive until the
        transfer completes; its contents are undefined until then. Raise ``FabricValueError`` if the
        range is out of bounds in either region.
        """
        return self._raw.start(False, *self._read_arguments(remote, offset, into, at, nbytes))

    def read(
        self,
        remote: RemoteRegion,
        offset: int = 0,
        *,
        into: Region,
        at: int = 0,
        nbytes: int | None = None,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Read as ``start_read()`` does, and wait for completion.

        After a ``FabricTimeoutError`` the read can still complete, until the channel is closed.
        Raise ``RegionGoneError`` if the peer released the region.
        """
        arguments = self._read_arguments(remote, offset, into, at, nbytes)
        if not self._raw.copy(False, *arguments):
            self._raw.start(False, *arguments).wait(timeout)

    def _read_arguments(
        self, remote: RemoteRegion, offset: int, into: Region, at: int, nbytes: int | None
    ) -> tuple[Region, int, int, int, int]:
        length = _stretch(remote, offset, into, at, nbytes)
        remote.check(self, offset, length)
        return into, at, remote.key, offset, length

    def start_write(
        self,
        remote: RemoteRegion,
        offset: int = 0,
        *,
        source: Region,
        at: int = 0,
        nbytes: int | None = None,
    ) -> Ticket:
        """Start copying `nbytes` from `at` of `source` to `offset` of the peer's region.

        Do not modify `source` until the transfer completes. A notification that is sent afterwards
        arrives after the data. Raise like ``start_read()``, and ``FabricAccessError`` if the peer's
        region is read-only.
        """
        return self._raw.start(True, *self._write_arguments(remote, offset, source, at, nbytes))

    def write(
        self,
        remote: RemoteRegion,
        offset: int = 0,
        *,
        source: Region,
        at: int = 0,
        nbytes: int | None = None,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Write as ``start_write()`` does, and wait until the bytes are in the peer's memory.

        After a ``FabricTimeoutError`` the write can still complete, until the channel is closed.
        Raise ``RegionGoneError`` if the peer released the region.
        """
        arguments = self._write_arguments(remote, offset, source, at, nbytes)
        if not self._raw.copy(True, *arguments):
            self._raw.start(True, *arguments).wait(timeout)

    def _write_arguments(
        self, remote: RemoteRegion, offset: int, source: Region, at: int, nbytes: int | None
    ) -> tuple[Region, int, int, int, int]:
        arguments = self._read_arguments(remote, offset, source, at, nbytes)
        if not remote.writable:
            raise FabricAccessError("cannot write: the peer's region is read-only")
        return arguments

    def notify(self, message: bytes | bytearray | memoryview) -> None:
        """Send a message after all earlier writes and messages. Does not block.

        Raise ``FabricValueError`` if the message exceeds about 96 KiB, ``FabricResourceError`` if
        the peer does not receive and too many messages are queued.
        """
        self._raw.notify(bytes(message))

    def receive(self, timeout: float | None = TIMEOUT) -> bytes:
        """Return the peer's next message.

        After the channel has closed, return the messages that are left, then raise
        ``FabricConnectionError``.
        """
        return self._raw.receive(timeout)

    def close(self, reason: str = "closed by its owner") -> None:
        """Close the channel and send the reason to the peer. Does not block. Idempotent.

        Transfers in progress fail.
        """
        self._raw.close(reason)

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Channel {self.fabric or 'not connected'} {self.route}>".replace(" >", ">")


class Device:
    """A local endpoint of a fabric, with one thread that makes progress until ``close()``.

    When idle, the thread sleeps after the time that RDMA_TRANSPORT_SPIN sets.
    """

    def __init__(self, fabric: str | None = None) -> None:
        self._raw = RawDevice(fabric or "")
        _open.add(self._raw)

    @classmethod
    def open(cls, fabric: str | None = None) -> "Device":
        """Open a fabric of ``FABRICS``, or ``"auto"``; None means RDMA_TRANSPORT_FABRIC.

        The other RDMA_TRANSPORT_* settings apply. Raise ``FabricError`` with the reason if the
        fabric is not available or a setting is invalid.
        """
        return cls(fabric)

    @property
    def summary(self) -> str:
        """Human-readable list of the fabrics: ``shm; no verbs: ...``."""
        return self._raw.summary()

    def allocate(self, nbytes: int, writable_by_peers: bool = False) -> Region:
        """Return new registered memory, zeroed. Peers can access it after ``Channel.share()``.

        ``np.frombuffer(region, dtype)`` is a writable view of it. The region lives as long as its
        views, even after the device is closed. Memory is allocated in units of 2 MiB. Raise
        ``FabricResourceError`` if there is not enough memory or lockable memory.
        """
        return self._raw.allocate(nbytes, writable_by_peers)

    def open_channel(self) -> Channel:
        """Return a new channel that is not connected yet."""
        return Channel(self._raw.open_channel())

    def close(self) -> None:
        """Close the channels, notify the peers and stop the thread.

        Takes at most two seconds, unless a card takes longer to end its queue pairs.
        """
        self._raw.close()

    def __repr__(self) -> str:
        return f"<Device {self.summary}>"

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stretch(remote: RemoteRegion, offset: int, region: Region, at: int, nbytes: int | None) -> int:
    """Return the number of bytes to move."""
    for place, length, whose in (
        (offset, remote.nbytes, "the peer's region"),
        (at, region.nbytes, "a region"),
    ):
        if not 0 <= place < length:
            raise FabricValueError(f"{whose} of {length} bytes has no byte {place}")
    return min(remote.nbytes - offset, region.nbytes - at) if nbytes is None else nbytes
