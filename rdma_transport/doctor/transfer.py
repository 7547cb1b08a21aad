"""One-sided writes and reads that are compared: within this process, or with a peer."""

import hashlib
import time
from dataclasses import dataclass

from rdma_transport.doctor.fixes import from_help
from rdma_transport.doctor.result import FAIL, PASS, Result
from rdma_transport.fabric import Channel, Device, FabricError, Region, RemoteRegion

NBYTES = 1 << 20
PATIENCE = 10.0  # seconds, of each step


class CorruptedError(Exception):
    """The bytes that arrived differ from those that were sent."""


@dataclass(frozen=True)
class Moved:
    """The measurement: seconds for the first ``NBYTES`` each way."""

    fabric: str
    route: str
    write_seconds: float
    read_seconds: float

    def __str__(self) -> str:
        return (
            f"{NBYTES >> 20} MiB written in {1e3 * self.write_seconds:.2f} ms and read back in "
            f"{1e3 * self.read_seconds:.2f} ms, verified: {self.fabric}, {self.route}"
        )


def pattern() -> bytes:
    """Return bytes without repetitions."""
    return hashlib.shake_128(b"rdma_transport doctor").digest(NBYTES)


def write_and_read(device: Device, channel: Channel, remote: RemoteRegion) -> Moved:
    """Write to the peer's region, read it back, and compare.

    Raises ``FabricError`` if a transfer fails, ``CorruptedError`` if the bytes differ.
    """
    sent, back = device.allocate(NBYTES), device.allocate(NBYTES)
    memoryview(sent).cast("B")[:NBYTES] = pattern()
    began = time.perf_counter()
    channel.write(remote, source=sent, nbytes=NBYTES, timeout=PATIENCE)
    written = time.perf_counter()
    channel.read(remote, into=back, nbytes=NBYTES, timeout=PATIENCE)
    ended = time.perf_counter()
    if not holds_pattern(back):
        raise CorruptedError("the bytes that were read back differ from those written")
    return Moved(channel.fabric, channel.route, written - began, ended - written)


def holds_pattern(region: Region) -> bool:
    """Whether a region starts with the bytes that ``write_and_read`` writes."""
    return bytes(memoryview(region).cast("B")[:NBYTES]) == pattern()


def loopback(fabric: str) -> Moved:
    """Transfer between two devices of this process."""
    with Device.open(fabric) as here, Device.open(fabric) as there:
        active, passive = here.open_channel(), there.open_channel()
        passive.connect(active.address, active=False)
        active.connect(passive.address, active=True)
        active.wait_connected(PATIENCE)
        passive.wait_connected(PATIENCE)
        target = there.allocate(NBYTES, writable_by_peers=True)
        moved = write_and_read(here, active, active.remote(passive.share(target), PATIENCE))
        if not holds_pattern(target):
            raise CorruptedError("the target memory differs from what was written")
        return moved


def check_transfer(fabric: str, fix: dict[str, str]) -> Result:
    """Report the result of ``loopback``."""
    name = f"{fabric}_transfer"
    try:
        return Result(name, PASS, str(loopback(fabric)))
    except (FabricError, CorruptedError) as error:
        text = str(error).removeprefix(f"RDMA_TRANSPORT_FABRIC={fabric}: ")
        found, _, advice = text.split("\n")[0].partition("; ")
        why = advice or f"a test transfer over the fabric '{fabric}' failed"
        return Result(name, FAIL, found.split(". Raise")[0], why, from_help(text) or fix)
