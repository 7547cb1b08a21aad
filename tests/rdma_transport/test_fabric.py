"""The fabric by hand: two processes, their memory as NumPy arrays, over each fabric."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdma_transport.fabric import (
    Channel,
    Device,
    FabricAccessError,
    FabricError,
    FabricStateError,
    FabricTimeoutError,
    FabricValueError,
    Region,
    RegionGoneError,
    RemoteRegion,
)
from tests.support.deadlines import patient

ROOT = Path(__file__).parents[2]
SPAWN = multiprocessing.get_context("spawn")
NBYTES = 1_000_000
SOON = 30.0


def serve(commands: Connection) -> None:
    """The other process: does to its end of a channel what it is asked to."""
    device = Device.open()
    channels: dict[int, tuple[Channel, Region]] = {}
    while True:
        number, what, *arguments = commands.recv()
        if what == "open":
            channel = device.open_channel()
            channel.connect(arguments[0], active=False)
            channels[number] = channel, device.allocate(NBYTES, writable_by_peers=arguments[1])
            commands.send(channel.address)
            continue
        channel, region = channels[number]
        memory = np.frombuffer(region, np.uint8)
        if what == "share":
            channel.wait_connected(SOON)
            channel.notify(channel.share(region))
        elif what == "fill":
            memory[:] = np.random.default_rng(arguments[0]).integers(0, 256, NBYTES, np.uint8)
            commands.send(None)
        elif what == "get":
            commands.send(memory.copy())
        elif what == "echo":
            channel.notify(channel.receive(SOON))
        elif what == "forget":
            del memory, region, channels[number]
            channels[number] = channel, device.allocate(1)
            commands.send(None)
        elif what == "close":
            channel.close(arguments[0])


class Peer:
    """The other process."""

    def __init__(self) -> None:
        self.commands, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.count = 0

    def ask(self, *what: Any) -> Any:
        self.commands.send(what)
        assert self.commands.poll(SOON)
        return self.commands.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.join()


class Pair:
    """A channel to the peer, and a region of it."""

    def __init__(self, device: Device, peer: Peer, writable: bool = True) -> None:
        peer.count += 1
        self.number, self.peer = peer.count, peer
        self.channel = device.open_channel()
        address = self.ask("open", self.channel.address, writable)
        self.channel.connect(address, active=True)
        self.channel.wait_connected(SOON)
        self.tell("share")
        self.token = self.channel.receive(SOON)
        self.remote: RemoteRegion = self.channel.remote(self.token, SOON)

    def ask(self, *what: Any) -> Any:
        return self.peer.ask(self.number, *what)

    def tell(self, *what: Any) -> None:
        self.peer.commands.send((self.number, *what))


def repeat(what: Callable[[], None]) -> None:
    """Until it raises, or for SOON."""
    deadline = time.monotonic() + patient(SOON)
    while time.monotonic() < deadline:
        what()


@contextmanager
def started_peer() -> Iterator[Peer]:
    peer = Peer()
    try:
        yield peer
    finally:
        peer.end()


@pytest.fixture(scope="module")
def device(fabric: str) -> Iterator[Device]:
    with Device.open() as opened:
        yield opened


@pytest.fixture(scope="module")
def peer(fabric: str) -> Iterator[Peer]:
    with started_peer() as started:
        yield started


@pytest.fixture(scope="module")
def pair(device: Device, peer: Peer) -> Pair:
    return Pair(device, peer)


@pytest.fixture(scope="module")
def local(device: Device) -> Region:
    return device.allocate(NBYTES)


def test_what_it_says_of_itself(pair: Pair, device: Device, fabric: str) -> None:
    assert fabric in device.summary
    assert pair.channel.fabric == fabric
    assert pair.channel.route
    assert fabric in repr(pair.channel)


def test_arrays_are_read_and_written_remotely(pair: Pair, local: Region) -> None:
    pair.ask("fill", 1)
    theirs = pair.ask("get")
    pair.channel.read(pair.remote, into=local)
    mine = np.frombuffer(local, np.uint8)
    np.testing.assert_array_equal(mine, theirs)
    floats = np.frombuffer(local, np.float32)
    floats[:] = np.arange(floats.size)
    pair.channel.write(pair.remote, source=local)
    np.testing.assert_array_equal(pair.ask("get").view(np.float32), floats)


@settings(max_examples=10)
@given(offset=st.integers(0, NBYTES - 1), at=st.integers(0, NBYTES - 1), data=st.data())
def test_any_stretch(pair: Pair, local: Region, offset: int, at: int, data: st.DataObject) -> None:
    nbytes = data.draw(st.integers(1, NBYTES - max(offset, at)))
    mine = np.frombuffer(local, np.uint8)
    mine[:] = np.random.default_rng(nbytes).integers(0, 256, NBYTES, np.uint8)
    expected = pair.ask("get")
    expected[offset : offset + nbytes] = mine[at : at + nbytes]
    pair.channel.write(pair.remote, offset, source=local, at=at, nbytes=nbytes)
    np.testing.assert_array_equal(pair.ask("get"), expected)
    mine[:] = 0
    pair.channel.read(pair.remote, offset, into=local, at=at, nbytes=nbytes)
    np.testing.assert_array_equal(mine[at : at + nbytes], expected[offset : offset + nbytes])
    assert not mine[:at].any()
    assert not mine[at + nbytes :].any()


@pytest.mark.parametrize(
    ("offset", "at", "nbytes"),
    [(NBYTES, 0, None), (-1, 0, 1), (0, -1, 1), (0, NBYTES, 1), (0, 1, NBYTES), (1, 0, NBYTES),
     (0, 0, 0), (0, 0, -1)],
)  # fmt: skip
def test_outside_of_a_region(
    pair: Pair, local: Region, offset: int, at: int, nbytes: int | None
) -> None:
    with pytest.raises(FabricValueError):
        pair.channel.read(pair.remote, offset, into=local, at=at, nbytes=nbytes)
    with pytest.raises(FabricValueError):
        pair.channel.write(pair.remote, offset, source=local, at=at, nbytes=nbytes)


def test_many_transfers_at_a_time_come_before_what_is_sent_after_them(
    pair: Pair, local: Region
) -> None:
    mine = np.frombuffer(local, np.uint8)
    mine[:] = np.random.default_rng(3).integers(0, 256, NBYTES, np.uint8)
    step = 10_000
    places = range(0, NBYTES, step)
    tickets = [
        pair.channel.start_write(pair.remote, place, source=local, at=place, nbytes=step)
        for place in places
    ]
    pair.channel.notify(b"written")
    pair.tell("echo")
    assert pair.channel.receive(SOON) == b"written"
    np.testing.assert_array_equal(pair.ask("get"), mine)
    for ticket in tickets:
        ticket.wait(patient(SOON))
        assert ticket.done


def test_the_processor_copies_at_once_what_it_maps(pair: Pair, fabric: str, local: Region) -> None:
    if fabric != "shm":
        pytest.skip("a card moves the bytes")
    for _ in range(100):  # a polling thread that reported the end might be as fast
        assert pair.channel.start_read(pair.remote, into=local, nbytes=64).done
        assert pair.channel.start_write(pair.remote, source=local, nbytes=64).done


def test_messages_come_in_order_and_waiting_ends(pair: Pair) -> None:
    for message in (b"", b"one", bytes(90_000), memoryview(b"three")):
        pair.channel.notify(message)
        pair.tell("echo")
        assert pair.channel.receive(SOON) == bytes(message)
    start = time.monotonic()
    with pytest.raises(FabricTimeoutError):
        pair.channel.receive(0.05)
    assert time.monotonic() - start < patient(5)
    with pytest.raises(FabricValueError):
        pair.channel.notify(bytes(10_000_000))


def test_memory_that_may_only_be_read(device: Device, peer: Peer, local: Region) -> None:
    pair = Pair(device, peer, writable=False)
    pair.channel.read(pair.remote, into=local)
    with pytest.raises(FabricAccessError) as caught:
        pair.channel.write(pair.remote, source=local)
    assert isinstance(caught.value, PermissionError)


def connects_at_once() -> bool:
    with Device.open() as here, Device.open() as there:
        time.sleep(0.1)  # longer than it spins, shorter than it sleeps
        active, passive = here.open_channel(), there.open_channel()
        passive.connect(active.address, active=False)
        active.connect(passive.address, active=True)
        try:
            active.wait_connected(0.5)
            passive.wait_connected(0.5)
        except TimeoutError:
            return False
        return True


def test_a_sleeping_device_notices_its_first_channel_at_once(fabric: str) -> None:
    assert any(connects_at_once() for _ in range(5))  # a busy machine may delay some


SIGNALS = """
import os, re, signal, sys
def caught():
    status = open("/proc/self/status").read()
    masks = re.findall(r"^Sig(?:Cgt|Ign):\\s+(\\w+)", status, re.MULTILINE)
    return [int(mask, 16) & 0x7fffffff for mask in masks]  # without those of the C library
signal.signal(signal.SIGTERM, lambda number, frame: print("handled", flush=True))
before = caught()
from rdma_transport.fabric import Device
with Device.open():
    assert caught() == before, (before, caught())
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_the_program_keeps_its_signal_handlers(fabric: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SIGNALS], capture_output=True, text=True, timeout=patient(30)
    )
    assert (ran.returncode, ran.stdout) == (0, "handled\ninterrupted\n"), ran.stderr


def test_tokens(pair: Pair, device: Device, peer: Peer, local: Region) -> None:
    with pytest.raises(FabricValueError):
        pair.channel.remote(b"what?")
    unknown = pair.token[:4] + bytes([99] * 8) + pair.token[12:]
    with pytest.raises(FabricTimeoutError):
        pair.channel.remote(unknown, 0.05)
    with pytest.raises(FabricValueError, match="another channel"):
        Pair(device, peer).channel.read(pair.remote, into=local)


def test_a_region_that_is_given_back(device: Device, peer: Peer, local: Region) -> None:
    pair = Pair(device, peer)
    pair.ask("forget")
    # The peer tells by the way; what the channel carries next comes after it.
    pair.channel.notify(b"?")
    pair.tell("echo")
    pair.channel.receive(SOON)
    with pytest.raises(RegionGoneError):
        repeat(lambda: pair.channel.read(pair.remote, into=local, nbytes=8))
    pair.channel.notify(b"undisturbed")
    pair.tell("echo")
    assert pair.channel.receive(SOON) == b"undisturbed"


def test_closing_tells_the_reason(device: Device, peer: Peer, local: Region) -> None:
    pair = Pair(device, peer)
    pair.tell("close", "had enough")
    with pytest.raises(ConnectionError, match="had enough") as caught:
        pair.channel.receive(SOON)
    assert isinstance(caught.value, FabricError)
    with pytest.raises(ConnectionError, match="had enough"):
        pair.channel.notify(b"too late")
    with pytest.raises(ConnectionError, match="had enough"):
        pair.channel.read(pair.remote, into=local)
    pair.channel.close()


def test_a_peer_that_dies(device: Device, fabric: str, local: Region) -> None:
    with started_peer() as doomed:
        pair = Pair(device, doomed)
        os.kill(doomed.process.pid or 0, signal.SIGSTOP)
        if fabric != "shm":  # shared memory needs nobody's help
            pair.channel.notify(b"you?")
        with pytest.raises(FabricTimeoutError):
            pair.channel.receive(0.1)
        doomed.end()
        start = time.monotonic()
        with pytest.raises(ConnectionError):
            repeat(lambda: pair.channel.write(pair.remote, source=local))
        assert time.monotonic() - start < patient(9)  # less than PEER_TIMEOUT
        with pytest.raises(ConnectionError):
            pair.channel.receive(SOON)


def test_what_waits_ends_when_the_device_closes(fabric: str, peer: Peer) -> None:
    device = Device.open()
    pair = Pair(device, peer)
    region = device.allocate(NBYTES, writable_by_peers=True)
    array = np.frombuffer(region, np.uint8)
    pair.channel.share(region)
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            pair.channel.receive(None)
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    device.close()
    device.close()
    thread.join(patient(SOON))
    assert isinstance(ends[0], ConnectionError)
    with pytest.raises(FabricStateError):
        device.allocate(1)
    with pytest.raises(FabricStateError):
        device.open_channel()
    with pytest.raises(ConnectionError):
        pair.channel.notify(b"")
    del region, device
    array[:] = 7
    assert array.sum(dtype=np.int64) == 7 * NBYTES


def test_before_it_is_connected(device: Device, local: Region) -> None:
    channel = device.open_channel()
    with pytest.raises(FabricStateError):
        channel.share(local)
    with pytest.raises(FabricStateError):
        channel.notify(b"")
    with pytest.raises(FabricStateError):
        channel.wait_connected(0)
    with pytest.raises(FabricValueError):
        channel.connect(b"nonsense", active=True)
    with pytest.raises(FabricValueError):
        device.allocate(0)
    with pytest.raises(FabricValueError):
        Device.open("carrier pigeon")


LEAVES = """
import os, sys, threading
from rdma_transport.fabric import Device, FabricStateError
assert "tensorflow" not in sys.modules
one, two = Device.open(), Device.open()
a, b = one.open_channel(), two.open_channel()
b.connect(a.address, active=False)
a.connect(b.address, active=True)
a.wait_connected(10), b.wait_connected(10)
child = os.fork()
if child == 0:
    for refused in (one.open_channel, lambda: one.allocate(1), lambda: a.notify(b"")):
        try:
            refused()
        except FabricStateError as error:
            assert "forked" in str(error)
        else:
            os._exit(2)
    Device.open().allocate(1)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
a.notify(b"the parent goes on")
assert b.receive(10) == b"the parent goes on"
threading.Thread(target=b.receive, args=(None,), daemon=True).start()
print("left open")
"""


def test_leaving_with_everything_open_and_forking(fabric: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LEAVES],
        capture_output=True,
        text=True,
        timeout=patient(30),
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "left open\n"), result.stderr


def test_a_channel_closes_with_its_block_and_a_device_says_what_it_opened() -> None:
    with Device.open("shm") as device:
        with device.open_channel() as channel:
            assert repr(channel) == "<Channel not connected>"
        with pytest.raises(FabricError):
            channel.connect(device.open_channel().address, active=True)
    assert repr(device) == "<Device shm>"
