"""Two hosts on this machine, whose tasks a session of this process reaches."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from bench.support import namespaces
from bench.support.cluster import Cluster
from bench.support.hosts import joined
from bench.support.namespaces import ADDRESSES, COMMAND_SECONDS, UnavailableError, enter
from bench.support.python import Process
from tests.support import forked

__all__ = [
    "ADDRESSES",
    "COMMAND_SECONDS",
    "Host",
    "HostCluster",
    "Hosts",
    "UnavailableError",
    "enter",
    "made",
]


class Host(namespaces.Host):
    """A host whose processes begin with modules already imported."""

    def __init__(self, host: str) -> None:
        self._relays: dict[str, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(host)

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
        super().end()


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


Hosts = namespaces.Hosts[Host]


def made() -> Hosts:
    """Two hosts; UnavailableError where there can be none."""
    return namespaces.Hosts(Host)


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
