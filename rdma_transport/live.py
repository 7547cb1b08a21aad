"""The servers of this user that run on this host, and what their transports did and do."""

import json
import os
import re
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rdma_transport.stats import readable

_NAME = re.compile(r"@rdma_transport\.status\.(\d+)\.(\d+)$")
_PATIENCE_SECONDS = 5.0
_RECORDING_PATIENCE_SECONDS = 60.0  # millions of events take a while to write down
_MOST_AT_A_TIME = 32


@dataclass(frozen=True)
class LiveServer:
    """A process with an ``rdma`` server; ``pid`` is its own, ``user`` the number of its user."""

    pid: int
    user: int

    def stats(self, patience: float = _PATIENCE_SECONDS) -> dict[str, Any]:
        """Return what ``rdma_transport.stats()`` gives there.

        Raises ``ConnectionError`` where the process is gone, is another user's, or does not answer
        within ``patience`` seconds.
        """
        with self._connect(patience) as connection:
            text = self._ask(connection, "stats", to_the_end=True)
        return readable(json.loads(text))

    def trace(self, events: int) -> "Recording":
        """Begin to keep single transfers there, up to that many events, two for each tensor.

        It ends with the ``Recording``, at the latest with this process. Raises as ``stats()``, and
        ``ConnectionError`` if somebody else records there.
        """
        connection = self._connect(_PATIENCE_SECONDS)
        try:
            answer = json.loads(self._ask(connection, f"trace {events}", to_the_end=False))
            if "error" in answer:
                raise ConnectionError(f"process {self.pid}: {answer['error']}; try again later")
        except BaseException:
            connection.close()
            raise
        return Recording(self, connection)

    def _connect(self, patience: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(patience)
            connection.connect(f"\0rdma_transport.status.{self.user}.{self.pid}")
        except OSError as error:
            connection.close()
            raise self._silence(error) from error
        return connection

    def _ask(self, connection: socket.socket, request: str, to_the_end: bool) -> bytes:
        text = b""
        try:
            # one that refuses may have closed already
            with suppress(BrokenPipeError):
                connection.sendall(request.encode() + b"\n")
            while part := connection.recv(1 << 16):
                text += part
                if not to_the_end and part.endswith(b"\n"):
                    break
        except OSError as error:
            raise self._silence(error) from error
        if not text:
            raise self._silence(None)
        return text

    def _silence(self, error: OSError | None) -> ConnectionError:
        if isinstance(error, ConnectionRefusedError):
            return ConnectionError(f"process {self.pid} has no rdma server any more: it has ended")
        if isinstance(error, TimeoutError):
            return ConnectionError(f"process {self.pid} does not answer: is it stopped?")
        if os.geteuid() not in (self.user, 0):
            return ConnectionError(
                f"process {self.pid} is of user {self.user}, and answers only to that user and root"
            )
        why = f" ({error})" if error else ""
        return ConnectionError(f"process {self.pid} ended before it had answered{why}")


class Recording:
    """A timeline that is being kept in a process; ``end()`` yields it."""

    def __init__(self, server: LiveServer, connection: socket.socket) -> None:
        self.server = server
        self._connection = connection

    def end(self) -> dict[str, Any]:
        """Return what was kept, as ``native/protocol/trace.h`` writes it; times are nanoseconds.

        Raises ``ConnectionError`` if the process ended meanwhile, or does not answer.
        """
        text = bytearray()
        with self._connection as connection:
            try:
                connection.settimeout(_RECORDING_PATIENCE_SECONDS)
                connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(1 << 20):
                    text += part
            except OSError as error:
                raise self.server._silence(error) from error
        try:
            kept: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise self.server._silence(None) from error
        return kept

    def cancel(self) -> None:
        """End it and forget what was kept."""
        self._connection.close()


def servers() -> list[LiveServer]:
    """Return the servers whose status can be asked for, by pid; Linux's list of local sockets."""
    mine = [one for one in _all_servers() if one.user == os.geteuid() or os.geteuid() == 0]
    return sorted(mine, key=lambda server: server.pid)


def find(which: Sequence[str]) -> list[LiveServer]:
    """Return the servers that a person means by process ids, or by ``all`` or nothing.

    Those that have none are left out. Raises ``ValueError`` for what is no process id, and
    ``LookupError`` with a sentence if nobody is left.
    """
    for one in which:
        if one != "all" and not (one.isascii() and one.isdigit()):
            raise ValueError(f"{one!r} is neither a process id nor 'all'")
    if not which or "all" in which:
        found = servers()
        why = (
            "no task of this user has an rdma server here. Start one with protocol='rdma' "
            '(or "rpc_layer": "rdma" in TF_CONFIG); tasks in a container are seen from inside it'
        )
    else:
        found = sorted(
            (one for one in _all_servers() if str(one.pid) in which), key=lambda one: one.pid
        )
        why = "; ".join(_absence(one) for one in which)
    if not found:
        raise LookupError(why)
    return found


def _absence(pid: str) -> str:
    if not os.path.exists(f"/proc/{pid}"):
        return f"there is no process {pid}"
    return f"process {pid} has no rdma server, or not yet; 'rdma-transport status' shows who has"


def ask(
    asked: list[LiveServer], patience: float = _PATIENCE_SECONDS
) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """Return the stats of those that answer, and why the others do not, by pid; all at once."""
    answers: dict[int, dict[str, Any]] = {}
    silent: dict[int, str] = {}
    if not asked:
        return answers, silent
    with ThreadPoolExecutor(min(len(asked), _MOST_AT_A_TIME)) as pool:
        for server, answer in [(one, pool.submit(one.stats, patience)) for one in asked]:
            try:
                answers[server.pid] = answer.result()
            except ConnectionError as error:
                silent[server.pid] = str(error)
    return answers, silent


def _all_servers() -> set[LiveServer]:
    found = set()
    with open("/proc/net/unix") as sockets:
        for line in sockets:
            match = _NAME.search(line.strip())
            if match:
                found.add(LiveServer(pid=int(match[2]), user=int(match[1])))
    return found
