"""Two doctors on two hosts: JSON lines over TCP, and one real transfer over the fabric."""

import contextlib
import socket
from typing import Any

import rdma_transport
from rdma_transport.doctor import fixes
from rdma_transport.doctor.result import FAIL, PASS, Result
from rdma_transport.doctor.secret import SERVICE_OF_DOCTORS, answering, asking, secret_fixes
from rdma_transport.doctor.transfer import (
    NBYTES,
    PATIENCE,
    CorruptedError,
    Moved,
    holds_pattern,
    write_and_read,
)
from rdma_transport.fabric import Channel, Device, FabricConnectionError, FabricError
from rdma_transport.json_lines import Wire

GREETING = "rdma_transport_doctor"


def opened() -> Device | FabricError:
    """The device of the listening side, which takes long to open on some hosts, or why not."""
    try:
        return Device.open()
    except FabricError as error:
        return error


def receive(connection: socket.socket, device_or_error: Device | FabricError) -> Result:
    """The listening side: let the client write and read a region."""
    wire = Wire(connection)
    try:
        if isinstance(device_or_error, FabricError):
            raise device_or_error
        with device_or_error as device:
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
            found = f"received {NBYTES >> 20} MiB: {channel.fabric}, {channel.route}"
            if good:
                return Result("peer_transfer", PASS, found)
            why = "the bytes are corrupted: check firmware, drivers and memory of both hosts"
            return Result("peer_transfer", FAIL, found, why, fixes.COMPARE)
    except FabricError as error:
        with connection:
            wire.tell(error=str(error).split("\n")[0])
        why = "a transfer with the client failed"
        return Result("peer_transfer", FAIL, str(error), why, fixes.COMPARE)
    except (PermissionError, ValueError) as error:
        with contextlib.suppress(OSError):
            wire.tell(error=str(error))
        why = "the client was rejected: both sides must have the same secret"
        return Result("peer_transfer", FAIL, f"rejected the client: {error}", why, secret_fixes())
    except OSError as error:
        fix = {"shell": "rdma-transport doctor --peer HOST:PORT    # on the client's host"}
        return Result("peer_transfer", FAIL, str(error), "the client did not finish", fix)


def wait_connected(channel: Channel, seconds: float) -> None:
    """Wait for the connection; raise ``FabricConnectionError``, with the route, if there is none.

    The error names the route because the cause is mostly on it.
    """
    try:
        channel.wait_connected(seconds)
    except FabricError as error:
        reason = str(error).split("\n")[0]
        route = f"{channel.fabric}, {channel.route}"
        raise FabricConnectionError(f"{reason} ({route})") from error


def visit(wire: Wire, greeting: dict[str, Any]) -> tuple[Moved, str]:
    """The connecting side: return the measurement and the other side's device.

    Raises ``OtherSideError``, ``FabricError``, ``CorruptedError``, or the exceptions of ``asking``
    and its calls if the secrets differ.
    """
    with Device.open() as device:
        channel = device.open_channel()
        handshake = asking(SERVICE_OF_DOCTORS)
        wire.tell(request=handshake.request("", 0, channel.address).hex())
        reply = handshake.reply(wire.bytes_in(wire.hear(), "reply"))
        channel.connect(reply["channel"], active=True, key=reply["key"])
        wait_connected(channel, PATIENCE)
        remote = channel.remote(wire.bytes_in(wire.hear(), "token"), PATIENCE)
        moved = write_and_read(device, channel, remote)
        wire.tell(done=True)
        if wire.hear().get("good") is not True:
            raise CorruptedError("the other side's memory differs from what was written")
        return moved, str(greeting.get("device", ""))
