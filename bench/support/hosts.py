"""Where the processes of a measurement run: on this host, or where `bench.support.agent` waits."""

import contextlib
import itertools
import json
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from . import python
from .meeting import reach, read_line
from .ports import free_port

# An agent takes no other setting from a client.
FORWARDED = ("RDMA_TRANSPORT_FABRIC", "RDMA_TRANSPORT_STATIC")
ANSWER_SECONDS = 10.0


class Place(Protocol):
    """A host."""

    def address(self) -> str:
        """ "host:port" for one more server there."""
        ...

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None,
        stderr: IO[str],
        file_size_limit: int | None = None,
    ) -> python.Process:
        """Start Python with `arguments`, the first of which is the path of a program."""
        ...


class Here:
    """This host; with a port, servers take those after it, otherwise any."""

    def __init__(self, host: str = "127.0.0.1", port: int | None = None) -> None:
        self.host = host
        self._ports = None if port is None else itertools.count(port + 1)

    def address(self) -> str:
        """Return a new HOST:PORT of this host."""
        return joined(self.host, free_port() if self._ports is None else next(self._ports))

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None,
        stderr: IO[str],
        file_size_limit: int | None = None,
    ) -> python.Process:
        """Start a program of bench/support on this host."""
        return python.start(arguments, environment, stderr, file_size_limit)


HERE = Here()


class There:
    """Another host, where an agent listens on `port`; servers take the ports after it.

    NobodyCameError if the agent is not there within `seconds`. It ends with this object.
    """

    def __init__(self, host: str, port: int, seconds: float) -> None:
        self.host, self.port = host, port
        self._ports = itertools.count(port + 1)
        self._session = reach(host, port, seconds)
        self._session.settimeout(ANSWER_SECONDS)
        self._session.sendall(b'{"program": "session"}\n')
        line = read_line(self._session)
        if not line:
            raise ConnectionError(
                f"{host}:{port} is busy with another measurement, or is not a bench command"
            )
        self.machine: dict[str, Any] = json.loads(line)

    def address(self) -> str:
        """Return the next HOST:PORT of that host."""
        return joined(self.host, next(self._ports))

    def ask(self, program: str, **more: Any) -> socket.socket:
        """A connection that is the standard input and output of a program of the agent's."""
        connection = reach(self.host, self.port, ANSWER_SECONDS)
        connection.sendall(json.dumps({"program": program, **more}).encode() + b"\n")
        connection.settimeout(None)
        return connection

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None,
        stderr: IO[str],
        file_size_limit: int | None = None,
    ) -> python.Process:
        """Start a program of bench/support on that host."""
        program, *rest = arguments
        given = {k: v for k, v in (environment or {}).items() if k in FORWARDED}
        return Remote(self.ask(Path(program).stem, arguments=rest, environment=given))

    def end(self) -> None:
        """Let the agent go; it ends what it started."""
        with contextlib.suppress(OSError):  # it may be gone
            self._session.sendall(b'{"program": "bye"}\n')
        self._session.close()


class Remote:
    """A process elsewhere; its standard input and output are a connection, and it ends with it."""

    pid = 0  # of no process here

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.stdin: IO[str] | None = connection.makefile("w")
        self.stdout: IO[str] | None = connection.makefile("r")
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return None while it runs, otherwise its exit code as far as known."""
        if self._code is None:
            try:
                if not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    self._code = 1
            except BlockingIOError:
                pass
            except OSError:
                self._code = 1
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Return at once: only the other host can wait for it."""
        return self.poll() or 0

    def kill(self) -> None:
        """Make the other host kill it."""
        self._code = -signal.SIGKILL
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def joined(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


Layout = Callable[[str, int], Place]  # of a job and an index


def everything_here(job: str, index: int) -> Place:
    """Place each task on this host."""
    return HERE


@contextlib.contextmanager
def reached(places: Iterable[tuple[str, int]], seconds: float) -> Iterator[list[There]]:
    """The hosts at these places, where agents wait, for as long as the context; see There."""
    with contextlib.ExitStack() as stack:
        others = []
        for place in places:
            others.append(There(*place, seconds))
            stack.callback(others[-1].end)
        yield others


def across(this: tuple[str, int], others: Sequence[There]) -> Layout:
    """Place tasks on this host, under its address and the ports after it, and on the others."""
    return spread([Here(*this), *others])


def spread(places: Sequence[Place]) -> Layout:
    """Workers, and task a, from the first place on; servers, and all others, from the last back."""

    def place(job: str, index: int) -> Place:
        first = job in ("worker", "a")
        return places[(index if first else -1 - index) % len(places)]

    return place
