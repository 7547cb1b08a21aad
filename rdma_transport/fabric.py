"""Remote memory by hand: the fabric under the transport, without TensorFlow.

Two processes each open a device and a channel, exchange the channels' addresses by whatever means
they have, and then read and write each other's memory, which NumPy sees as arrays::

    with Device.open() as device:
        channel = device.open_channel()
        ...  # tell the peer channel.address; it connects with active=False and tells its own
        channel.connect(peer_address, active=True)
        channel.wait_connected(timeout=10)
        region = device.allocate(1 << 20)
        array = np.frombuffer(region, np.float32)
        remote = channel.remote(channel.receive(timeout=10))  # the peer's channel.share(...)
        channel.read(remote, into=region)  # array now holds what the peer's memory held

One thread per device, without Python, moves what must be moved. All calls may come from any thread;
those that wait do so without the interpreter's lock, and Ctrl-C ends them. Timeouts are seconds,
None is for ever. Offsets and lengths are bytes.

A process that is forked from one with an open device cannot use it (``FabricStateError``) and sees
a copy of its regions; it opens a device of its own.

Errors are of ``FabricError``, and each is also of the built-in kind that fits.
"""

import atexit
import struct
import weakref
from dataclasses import dataclass, field
from types import TracebackType

from rdma_transport._fabric import (
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

MIN_KEY = 32  # bytes of what two channels authenticate each other by
TIMEOUT = 30.0  # of calls that are given none
_TOKEN = struct.Struct("<4sQQ?")
_MAGIC = b"rgn1"

_open: "weakref.WeakSet[RawDevice]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End the threads, and tell the peers, while there still is an interpreter."""
    for device in list(_open):
        device.close()


@dataclass(frozen=True)
class RemoteRegion:
    """A region of the peer, as ``Channel.remote()`` returns it: good for that channel."""

    key: int
    nbytes: int
    writable: bool
    channel: "Channel" = field(repr=False)

    def check(self, channel: "Channel", offset: int, nbytes: int) -> None:
        """Raise ``FabricValueError`` unless it is the channel's and the stretch lies inside."""
        if channel is not self.channel:
            raise FabricValueError("the region is of another channel")
        if nbytes < 1 or offset + nbytes > self.nbytes:
            raise FabricValueError(
                f"{nbytes} bytes at {offset} are not inside the peer's region "
                f"of {self.nbytes} bytes"
            )


class Channel:
    """An ordered connection to one peer. Keeps its device open; closes when it is dropped.

    What ends it - the peer's close() or death, a failure of the network - is a
    ``FabricConnectionError`` from then on, with the reason. Shared memory notices a peer's death at
    once; verbs does when something is sent to it, after the time that the card keeps trying.
    """

    def __init__(self, raw: RawChannel) -> None:
        self._raw = raw

    @property
    def address(self) -> bytes:
        """What the peer's ``connect()`` wants; opaque."""
        return self._raw.address()

    def connect(self, peer_address: bytes, active: bool, key: bytes = b"") -> None:
        """Begin to connect, actively on one side; on the other side not, and earlier.

        So: the active side tells its address; the other one connects to it and answers with its
        own; the active one connects. `key` is a secret of the two, of at least 32 bytes or none:
        each shows the other that it has it, and the addresses, without showing them.

        Raise ``FabricConnectionError`` if no fabric reaches that address from here, and
        ``FabricValueError`` if it is none.
        """
        if key and len(key) < MIN_KEY:
            raise FabricValueError(f"a key of {len(key)} bytes; it needs at least {MIN_KEY}")
        self._raw.connect(peer_address, active, key)

    def wait_connected(self, timeout: float | None = TIMEOUT) -> None:
        """Wait until both sides are there: ``FabricTimeoutError``, ``FabricConnectionError``."""
        self._raw.wait_connected(timeout)

    @property
    def fabric(self) -> str:
        """``shm`` or ``verbs``; empty before ``connect()``."""
        return self._raw.fabric()

    @property
    def route(self) -> str:
        """How it reaches the peer, for people; empty before ``connect()``."""
        return self._raw.route()

    def share(self, region: Region) -> bytes:
        """Let the peer reach `region`, as far as the region allows; return the token that names it.

        The token is for the peer's ``remote()`` and may travel by any means. What is shared stays
        so until the region's end or the channel's.
        """
        self._raw.share(region)
        return _TOKEN.pack(_MAGIC, region.key, region.nbytes, region.writable_by_peers)

    def remote(self, token: bytes, timeout: float | None = TIMEOUT) -> RemoteRegion:
        """Return the peer's region that a token names, once it can be reached.

        Raise ``FabricValueError`` if this is no token, ``FabricTimeoutError`` if the peer did not
        share it with this channel. Trust only tokens of the peer.
        """
        if len(token) != _TOKEN.size or not token.startswith(_MAGIC):
            raise FabricValueError("this is not the token of a region")
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
        """Begin to copy `nbytes` of the peer's region from `offset` on to `into` from `at` on.

        By default all that both have from there. `into` lives until the end of it; what it holds
        is undefined until then. Raise ``FabricValueError`` for a stretch outside of either region.
        """
        length = _stretch(remote, offset, into, at, nbytes)
        remote.check(self, offset, length)
        return self._raw.start(False, into, at, remote.key, offset, length)

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
        """``start_read()``, and wait for its end.

        After a ``FabricTimeoutError`` it may still happen, until the channel is closed.
        ``RegionGoneError``: the peer gave the region back.
        """
        self.start_read(remote, offset, into=into, at=at, nbytes=nbytes).wait(timeout)

    def start_write(
        self,
        remote: RemoteRegion,
        offset: int = 0,
        *,
        source: Region,
        at: int = 0,
        nbytes: int | None = None,
    ) -> Ticket:
        """Begin to copy `nbytes` of `source` from `at` on to the peer's region from `offset` on.

        `source` must stay as it is until the end of it. A notification sent afterwards comes after
        it. Raise as ``start_read()``, and ``FabricAccessError`` where the peer only lets read.
        """
        length = _stretch(remote, offset, source, at, nbytes)
        remote.check(self, offset, length)
        if not remote.writable:
            raise FabricAccessError("a write to memory that the peer only lets be read")
        return self._raw.start(True, source, at, remote.key, offset, length)

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
        """``start_write()``, and wait until the bytes are in the peer's memory.

        After a ``FabricTimeoutError`` it may still happen, until the channel is closed.
        ``RegionGoneError``: the peer gave the region back.
        """
        self.start_write(remote, offset, source=source, at=at, nbytes=nbytes).wait(timeout)

    def notify(self, message: bytes | bytearray | memoryview) -> None:
        """Send a message, after all earlier writes and messages. Never waits.

        About 96 KiB at most (``FabricValueError``). ``FabricResourceError``: the peer takes none,
        and too much waits for it.
        """
        self._raw.notify(bytes(message))

    def receive(self, timeout: float | None = TIMEOUT) -> bytes:
        """Return the peer's next message.

        Those that came before the channel's end are returned first, then ``FabricConnectionError``.
        """
        return self._raw.receive(timeout)

    def close(self, reason: str = "closed by its owner") -> None:
        """Tell the peer the reason; what is under way fails. Does not wait. Again: nothing."""
        self._raw.close(reason)

    def __repr__(self) -> str:
        return f"<Channel {self.fabric or 'not connected'} {self.route}>".replace(" >", ">")


class Device:
    """What this process has of a fabric, with one thread that serves it until ``close()``.

    Idle, that thread sleeps; RDMA_TRANSPORT_SPIN says after how long.
    """

    def __init__(self, fabric: str | None = None) -> None:
        self._raw = RawDevice(fabric or "")
        _open.add(self._raw)

    @classmethod
    def open(cls, fabric: str | None = None) -> "Device":
        """Open ``"auto"``, ``"shm"`` or ``"verbs"``; None: what RDMA_TRANSPORT_FABRIC says.

        All else is set by the RDMA_TRANSPORT_* settings. Raise ``FabricError`` with the reason if
        there is none, or if a setting is wrong.
        """
        return cls(fabric)

    @property
    def summary(self) -> str:
        """What there is, for people: ``shm; no verbs: ...``."""
        return self._raw.summary()

    def allocate(self, nbytes: int, writable_by_peers: bool = False) -> Region:
        """Return new registered memory, zeroed, which peers can reach once it is shared with them.

        ``np.frombuffer(region, dtype)`` is a writable view of it. The region lives while views of
        it do, also after the device was closed. Takes whole units of 2 MiB. Raise
        ``FabricResourceError`` if there is not enough memory, or locked memory.
        """
        return self._raw.allocate(nbytes, writable_by_peers)

    def open_channel(self) -> Channel:
        """Return a channel that is not connected yet."""
        return Channel(self._raw.open_channel())

    def close(self) -> None:
        """Close the channels, tell the peers, end the thread; takes two seconds at most."""
        self._raw.close()

    def __enter__(self) -> "Device":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _stretch(remote: RemoteRegion, offset: int, region: Region, at: int, nbytes: int | None) -> int:
    """Return how many bytes there are to move."""
    for place, length, whose in (
        (offset, remote.nbytes, "the peer's region"),
        (at, region.nbytes, "a region"),
    ):
        if not 0 <= place < length:
            raise FabricValueError(f"{whose} of {length} bytes has no byte {place}")
    return min(remote.nbytes - offset, region.nbytes - at) if nbytes is None else nbytes
