"""Channels between the hosts, and to processes of their own that claims kill and stop."""

import contextlib
import ctypes
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any

from rdma_transport.fabric import Channel, Device, FabricError, RemoteRegion
from rdma_transport.qualify.hosts import Hosts

_CONNECT = 30.0
REGION = 4 * 2**20
_KILLED_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@contextlib.contextmanager
def linked(hosts: Hosts) -> Iterator[tuple[Device, Channel, Channel]]:
    """A device, a channel to the next host, and one from the host before."""
    with contextlib.ExitStack() as stack:

        def opened() -> str:
            device = stack.enter_context(Device.open(hosts.fabric))
            ends[:] = [device, device.open_channel(), device.open_channel()]
            return str(ends[1].address.hex())

        ends: list[Any] = []
        addresses = hosts.together(opened, _CONNECT)
        device, out, into = ends

        def accepted() -> str:
            into.connect(bytes.fromhex(addresses[hosts.other(-1)]), False, hosts.key)
            return str(into.address.hex())

        answers = hosts.together(accepted, _CONNECT)

        def connected() -> bool:
            out.connect(bytes.fromhex(answers[hosts.other(1)]), True, hosts.key)
            out.wait_connected(_CONNECT)
            into.wait_connected(_CONNECT)
            return True

        hosts.together(connected, 2 * _CONNECT)
        yield device, out, into


class Victim:
    """A process that answers one channel: sends each notification back. It dies with this one."""

    def __init__(self, fabric: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rdma_transport.qualify.links", fabric],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,  # Ctrl-C is for this process, which ends it
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message, return the answer; raise ``OSError``, ``FabricError``."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=2 * _CONNECT)
        except queue.Empty:
            line = ""
        if not line:
            raise FabricError(f"a process of this host did not answer to {next(iter(message))}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise FabricError(answer["error"])
        return answer

    def signal(self, number: int) -> None:
        """Stop, continue or kill it."""
        self._process.send_signal(number)

    def end(self) -> None:
        """Kill it, also if it is stopped."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


@contextlib.contextmanager
def with_victims(hosts: Hosts) -> Iterator[tuple[Victim, Device, Channel, RemoteRegion]]:
    """This host's victim; and a device and a channel to that of the next host, and its region."""
    with contextlib.ExitStack() as stack:
        ends: list[Any] = []

        def opened() -> str:
            device = stack.enter_context(Device.open(hosts.fabric))
            ends[:] = [device, device.open_channel()]
            return str(ends[1].address.hex())

        addresses = hosts.together(opened, _CONNECT)

        def started() -> str:
            victim = Victim(hosts.fabric)
            stack.callback(victim.end)
            ends.append(victim)
            address = addresses[hosts.other(-1)]
            return str(victim.ask(address=address, key=hosts.key.hex())["address"])

        answers = hosts.together(started, 2 * _CONNECT)
        device, channel, victim = ends

        def connected() -> str:
            channel.connect(bytes.fromhex(answers[hosts.other(1)]), True, hosts.key)
            channel.wait_connected(_CONNECT)
            return str(victim.ask(share=REGION)["token"])

        tokens = hosts.together(connected, 3 * _CONNECT)
        token = bytes.fromhex(tokens[hosts.other(1)])
        remotes: list[RemoteRegion] = []
        hosts.together(lambda: remotes.append(channel.remote(token)), _CONNECT)
        yield victim, device, channel, remotes[0]


def _answer(fabric: str) -> None:
    """The process of a ``Victim``."""
    with Device.open(fabric) as device:
        channel = device.open_channel()
        wish = json.loads(sys.stdin.readline())
        channel.connect(bytes.fromhex(wish["address"]), False, bytes.fromhex(wish["key"]))
        print(json.dumps({"address": channel.address.hex()}), flush=True)
        wish = json.loads(sys.stdin.readline())
        channel.wait_connected(_CONNECT)
        region = device.allocate(wish["share"], writable_by_peers=True)
        print(json.dumps({"token": channel.share(region).hex()}), flush=True)
        while True:
            channel.notify(channel.receive(timeout=None))


def main() -> None:
    """Serve until this process is killed, or the channel ends."""
    ctypes.CDLL(None).prctl(_KILLED_WITH_PARENT, signal.SIGKILL)
    try:
        _answer(sys.argv[1])
    except FabricError as error:
        print(json.dumps({"error": str(error).split("\n")[0]}), flush=True)


if __name__ == "__main__":
    main()
