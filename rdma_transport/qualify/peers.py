"""Claims about a peer that is killed or stopped: a process of its own on each host."""

import contextlib
import os
import signal
import textwrap
import time

from rdma_transport.doctor.result import FAIL, PASS, Result
from rdma_transport.fabric import Channel, Device, FabricConnectionError, RemoteRegion
from rdma_transport.qualify.context import Context
from rdma_transport.qualify.links import with_victims

_LIVES = 1.0  # seconds of transfers before the peer is killed
_NOTICED = 60.0
_STOPPED = 2.0
_NOTES = 200
_PART = 2**20
_LONGEST = 120  # characters of an error that is shown


def killed(context: Context) -> Result:
    """A peer that is killed amid transfers is noticed as an error, without a hang or a crash."""
    hosts = context.hosts
    with with_victims(hosts) as (victim, device, channel, remote):

        def step() -> tuple[float, str]:
            writing = _Writing(device, channel, remote)
            kill = time.monotonic() + _LIVES  # on all hosts, as good as at once
            alive = True
            while time.monotonic() < kill + _NOTICED:
                if alive and time.monotonic() > kill:
                    victim.signal(signal.SIGKILL)
                    alive = False
                try:
                    writing.one()
                except FabricConnectionError as error:
                    noticed = time.monotonic()
                    time.sleep(max(0.0, kill - noticed))
                    victim.signal(signal.SIGKILL)
                    return max(0.0, noticed - kill), textwrap.shorten(str(error), _LONGEST)
            return -1.0, ""

        found = hosts.together(step, _LIVES + _NOTICED)
    worst = max(seconds for seconds, _ in found)
    quiet = [name for name, each in zip(hosts.names, found, strict=True) if each[0] < 0]
    if quiet:
        why = "a step would hang when a task dies, until RDMA_TRANSPORT_PEER_TIMEOUT"
        fix = {"shell": "rdma-transport doctor    # on each host: how the card reports retries"}
        text = f"{', '.join(quiet)}: no error {_NOTICED:g} s after the peer was killed"
        return Result("killed_peer", FAIL, text, why, fix)
    context.figures["killed_peer_seconds"] = worst
    return Result("killed_peer", PASS, f"noticed after {worst:.2f} s at most: {found[0][1]}")


class _Writing:
    """Writes of 1 MiB, each with a notification that comes back."""

    def __init__(self, device: Device, channel: Channel, remote: RemoteRegion) -> None:
        self._channel, self._remote = channel, remote
        self._source = device.allocate(_PART)

    def one(self) -> None:
        """Write and wait; raise ``FabricConnectionError`` when the channel has ended."""
        with contextlib.suppress(TimeoutError):
            self._channel.write(self._remote, source=self._source, timeout=1)
            self._channel.notify(b"written")
            self._channel.receive(timeout=1)


def stopped(context: Context) -> Result:
    """A peer that is stopped for a while loses nothing, and its channel lives."""
    hosts = context.hosts
    with with_victims(hosts) as (victim, device, channel, remote):
        source, back = device.allocate(_PART), device.allocate(_PART)
        sent = os.urandom(_PART)
        memoryview(source).cast("B")[:] = sent

        def step() -> tuple[bool, float]:
            victim.signal(signal.SIGSTOP)
            try:
                time.sleep(_STOPPED / 4)  # until the other hosts have stopped theirs
                began = time.monotonic()
                ticket = channel.start_write(remote, source=source, nbytes=_PART)
                for number in range(_NOTES):
                    channel.notify(number.to_bytes(4))
                with contextlib.suppress(TimeoutError):
                    ticket.wait(_STOPPED / 4)
                one_sided = ticket.done
                time.sleep(max(0.0, began + _STOPPED - time.monotonic()))
            finally:
                victim.signal(signal.SIGCONT)
            ticket.wait(_NOTICED)
            for number in range(_NOTES):
                answer = int.from_bytes(channel.receive(_NOTICED))
                if answer != number:
                    raise ValueError(f"notification {number} came back as number {answer}")
            channel.read(remote, into=back, nbytes=_PART)
            if bytes(memoryview(back).cast("B")) != sent:
                raise ValueError("the bytes that were written while it was stopped are wrong")
            return one_sided, time.monotonic() - began

        found = hosts.together(step, _NOTICED)
    how = "the write ended meanwhile" if all(each[0] for each in found) else "the write waited"
    text = f"{_STOPPED:g} s, then {_NOTES} notifications in order and 1 MiB intact; {how}"
    return Result("stopped_peer", PASS, text)
