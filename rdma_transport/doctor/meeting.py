"""Two doctors on two hosts: lines of JSON over TCP, and one real transfer by the fabric."""

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

import rdma_transport
from rdma_transport.doctor import mending
from rdma_transport.doctor.result import FAIL, PASS, Result
from rdma_transport.doctor.secret import SERVICE_OF_DOCTORS, answering, asking, fixes
from rdma_transport.doctor.transfer import (
    NBYTES,
    PATIENCE,
    CorruptedError,
    Moved,
    holds_pattern,
    write_and_read,
)
from rdma_transport.fabric import Device, FabricError

GREETING = "rdma_transport_doctor"
_LONGEST_LINE = 1 << 16


class MeetingError(Exception):
    """The other doctor left, or said something else than expected."""


@dataclass
class Wire:
    """Lines of JSON, one object each."""

    connection: socket.socket
    rest: bytes = b""

    def tell(self, **message: Any) -> None:
        """Send one line."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        """Return the next line; raise ``MeetingError`` if none comes, or an error does."""
        self.connection.settimeout(2 * PATIENCE)
        while b"\n" not in self.rest:
            try:
                more = self.connection.recv(_LONGEST_LINE)
            except OSError as error:
                raise MeetingError(f"the other side fell silent: {error}") from None
            if not more or len(self.rest) > _LONGEST_LINE:
                raise MeetingError("the other side left")
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise MeetingError("the other side is no doctor of rdma_transport")
        if "error" in message:
            raise MeetingError(f"the other side: {message['error']}")
        return message

    def bytes_in(self, message: dict[str, Any], key: str) -> bytes:
        """Return what a message carries under a key."""
        try:
            return bytes.fromhex(message[key])
        except (KeyError, TypeError, ValueError):
            raise MeetingError(f"the other side sent no {key}") from None


def receive(connection: socket.socket) -> Result:
    """The side that listens: let the visitor write and read memory made for it."""
    wire = Wire(connection)
    try:
        with Device.open() as device:
            wire.tell(**{GREETING: rdma_transport.__version__, "device": device.summary})
            channel = device.open_channel()
            handshake = answering(SERVICE_OF_DOCTORS)
            asked = handshake.check(wire.bytes_in(wire.hear(), "request"))
            channel.connect(asked["channel"], active=False, key=asked["key"])
            wire.tell(reply=handshake.reply(channel.address, "").hex())
            channel.wait_connected(PATIENCE)
            region = device.allocate(NBYTES, writable_by_peers=True)
            wire.tell(token=channel.share(region).hex())
            wire.hear()
            good = holds_pattern(region)
            wire.tell(good=good)
            found = f"{NBYTES >> 20} MiB came: {channel.fabric}, {channel.route}"
            if good:
                return Result("peer_transfer", PASS, found)
            why = "but other bytes than were sent: see firmware, drivers and memory of both hosts"
            return Result("peer_transfer", FAIL, found, why, mending.COMPARE)
    except FabricError as error:
        with connection:
            wire.tell(error=str(error).split("\n")[0])
        why = "the fabric was tried with the visitor"
        return Result("peer_transfer", FAIL, str(error), why, mending.COMPARE)
    except (PermissionError, ValueError) as error:
        with contextlib.suppress(OSError):
            wire.tell(error=str(error))
        why = "the visitor is not let in: the secrets of both must be the same"
        return Result("peer_transfer", FAIL, f"told the visitor: {error}", why, fixes())
    except (MeetingError, OSError) as error:
        mend = {"shell": "rdma-transport doctor --peer HOST:PORT    # on the visitor's host"}
        return Result("peer_transfer", FAIL, str(error), "the visitor did not finish", mend)


def visit(wire: Wire, greeting: dict[str, Any]) -> tuple[Moved, str]:
    """The side that connects; return what was measured, and the other side's device.

    Raise ``MeetingError``, ``FabricError``, ``CorruptedError``, or what ``asking`` and its calls
    raise where the secrets differ.
    """
    with Device.open() as device:
        channel = device.open_channel()
        handshake = asking(SERVICE_OF_DOCTORS)
        wire.tell(request=handshake.request("", 0, channel.address).hex())
        reply = handshake.reply(wire.bytes_in(wire.hear(), "reply"))
        channel.connect(reply["channel"], active=True, key=reply["key"])
        channel.wait_connected(PATIENCE)
        remote = channel.remote(wire.bytes_in(wire.hear(), "token"), PATIENCE)
        moved = write_and_read(device, channel, remote)
        wire.tell(done=True)
        if wire.hear().get("good") is not True:
            raise CorruptedError("the other side's memory holds something else than was written")
        return moved, str(greeting.get("device", ""))
