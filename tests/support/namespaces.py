"""Two hosts on this machine: network namespaces, joined by a veth pair and by nothing else.

A namespace here has no name. It lasts as long as a process or a descriptor holds it, so nothing is
left behind, even if the tests are killed. The network of this machine does not change.
"""

import asyncio
import contextlib
import ctypes
import errno
import itertools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TypeVar

from bench.support.cluster import Cluster, eventually
from bench.support.hosts import joined
from bench.support.python import Process
from tests.support import forked

CLONE_NEWNET = 0x40000000
FIRST_PORT = 7001
ADDRESSES = ("198.18.0.1", "198.18.0.2")  # a range that is not used on the Internet
INTERFACE = "eth0"
COMMAND_SECONDS = 20
Result = TypeVar("Result")
_libc = ctypes.CDLL(None, use_errno=True)


class UnavailableError(Exception):
    """This machine cannot have such hosts; the message says why."""


def enter(network: str) -> None:
    """Move this thread, and what it starts from now on, into a namespace, given by a path."""
    descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)


class Host:
    """A network namespace with one interface; a `Place` of bench.support.hosts."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._ports = itertools.count(FIRST_PORT)
        # The thread that makes the namespace stays in it.
        self._inside = ThreadPoolExecutor(1)
        self._relays: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._descriptor = self.call(_new_network)
        except OSError as error:
            self._inside.shutdown()
            raise UnavailableError(f"no network namespaces: {error.strerror}") from None
        self.network = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def call(self, function: Callable[[], Result]) -> Result:
        """Call it in a thread of this host. Processes that it starts are on this host, too."""
        return self._inside.submit(function).result()

    def run(self, *command: str) -> str:
        """Run a command to its end; return its standard output."""
        ran = self.call(
            lambda: subprocess.run(
                command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
            )
        )
        if ran.returncode != 0:
            raise UnavailableError(f"{' '.join(command)}: {ran.stderr.strip()}")
        return ran.stdout

    def link(self, up: bool) -> None:
        """Connect this host's interface, or disconnect it."""
        self.run("ip", "link", "set", INTERFACE, "up" if up else "down")

    def running(self) -> bool:
        """Whether the interface is up, and so is the other end."""
        return "state UP" in self.run("ip", "-oneline", "link", "show", INTERFACE)

    def address(self) -> str:
        return joined(self.host, next(self._ports))

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None,
        stderr: IO[str],
        file_size_limit: int | None = None,
    ) -> Process:
        surroundings = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | dict(environment or {})
        return forked.start(arguments, surroundings, stderr, file_size_limit, self.network)

    def relayed(self, address: str) -> str:
        """An address of this process's host whose connections go on to one of this host's."""
        if address not in self._relays:
            listener = socket.create_server(("127.0.0.1", 0))
            self._relays[address] = joined("127.0.0.1", listener.getsockname()[1])
            asyncio.run_coroutine_threadsafe(_relay(listener, address), self._running()).result()
        return self._relays[address]

    def _running(self) -> asyncio.AbstractEventLoop:
        """The event loop of the relays."""
        if self._loop is None:
            started = threading.Event()

            async def main() -> None:
                self._loop = asyncio.get_running_loop()
                self._ended = asyncio.Event()
                started.set()
                await self._ended.wait()

            def run() -> None:
                enter(self.network)
                asyncio.run(main())

            self._relaying = threading.Thread(target=run, daemon=True)
            self._relaying.start()
            started.wait()
        assert self._loop is not None
        return self._loop

    def end(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
            self._relaying.join()
        self._inside.shutdown()
        os.close(self._descriptor)


def _new_network() -> int:
    """Move this thread into a new namespace; return a descriptor of it."""
    if _libc.unshare(CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        why = "needs root" if number == errno.EPERM else os.strerror(number)
        raise OSError(number, f"unshare: {why}")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


async def _relay(listener: socket.socket, address: str) -> None:
    """Serve a listener of another namespace: a new connection is of this thread's."""
    host, _, port = address.rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(2**18):
                writer.write(part)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, back), pump(there, writer))

    await asyncio.start_server(serve, sock=listener)


class Hosts:
    """Two hosts and the link between them."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            self.both: list[Host] = []
            for address in ADDRESSES:
                self.both.append(Host(address))
                stack.callback(self.both[-1].end)
            self.first, self.second = self.both
            pair = f"link add {INTERFACE} type veth peer name {INTERFACE} netns"
            self.first.run("ip", *pair.split(), self.second.network)
            for host in self.both:
                host.run("ip", "address", "add", f"{host.host}/24", "dev", INTERFACE)
                host.run("ip", "link", "set", "lo", "up")
                host.link(up=True)
            # The kernel finds out a while later, and tasks use no interface before.
            if not all(eventually(host.running, COMMAND_SECONDS) for host in self.both):
                raise UnavailableError("the link between two namespaces does not come up")
            self._ending = stack.pop_all()

    def place(self, job: str, index: int) -> Host:
        """Where a task runs: the servers `b` and `ps` on the second host, workers in turn."""
        if job == "worker":
            return self.both[index % 2]
        return self.second if job in ("b", "ps") else self.first

    def end(self) -> None:
        self._ending.close()


def made() -> Hosts:
    """Two hosts; UnavailableError where there can be none."""
    if shutil.which("ip") is None:
        raise UnavailableError("there is no command ip: apt-get install iproute2")
    return Hosts()


class HostCluster(Cluster):
    """Tasks on two hosts, which a session of this process reaches by relays."""

    def __init__(
        self,
        hosts: Hosts,
        jobs: dict[str, int],
        protocol: str,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.hosts = hosts
        super().__init__(jobs, protocol, environment, layout=hosts.place)

    def target(self, job: str, index: int = 0) -> str:
        return "grpc://" + self.hosts.place(job, index).relayed(self.spec[job][index])


@contextlib.contextmanager
def running_on(
    hosts: Hosts,
    jobs: dict[str, int],
    protocol: str = "rdma",
    environment: dict[str, str] | None = None,
) -> Iterator[HostCluster]:
    cluster = HostCluster(hosts, jobs, protocol, environment)
    try:
        yield cluster
    finally:
        cluster.end()
