"""Running rdma servers on this host: find them, read their counters, record their transfers."""

import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rdma_transport.stats import readable

_NAME = re.compile(r"@rdma_transport\.status\.(\d+)\.(\d+)$")
_TIMEOUT_SECONDS = 5.0
_RECORDING_TIMEOUT_SECONDS = 60.0  # serializing millions of events takes a while
_MAX_AT_A_TIME = 32
_MAX_STATS_BYTES = 64 << 20  # of a hundred thousand edges
_MAX_EVENT_BYTES = 1 << 10
_MAX_LINE_BYTES = 1 << 16
_UCRED = struct.Struct("3i")  # pid, user and group of the listening process


@dataclass(frozen=True)
class LiveServer:
    """A process with an ``rdma`` server: its ``pid`` and the numeric id of its ``user``.

    Any local user can bind the name of another user's status socket. So an answer is accepted only
    if the kernel reports that it comes from that user or from root. Time and size are limited.
    """

    pid: int
    user: int

    def stats(self, timeout: float = _TIMEOUT_SECONDS) -> dict[str, Any]:
        """Return the result of ``rdma_transport.stats()`` in that process.

        Raises ``ConnectionError`` if the process has ended, belongs to another user, does not
        answer within ``timeout`` seconds, or sends a malformed status.
        """
        with _Conversation(self, timeout) as conversation:
            conversation.request("stats")
            answer = conversation.read(_MAX_STATS_BYTES)
        try:
            return readable(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConnectionError(
                f"process {self.pid} has another version of rdma_transport. "
                "Run the rdma-transport command of that version"
            ) from error

    def trace(self, events: int) -> "Recording":
        """Start recording transfers in that process, up to ``events`` events, two per tensor.

        The recording stops with the ``Recording``, at the latest when this process ends. Raises
        like ``stats()``, and ``ConnectionError`` if another client is recording there.
        """
        conversation = _Conversation(self, _TIMEOUT_SECONDS)
        try:
            conversation.request(f"trace {events}")
            answer = conversation.read_line(_MAX_LINE_BYTES)
            if "error" in answer:
                raise ConnectionError(f"process {self.pid}: {answer['error']}; try again later")
        except BaseException:
            conversation.close()
            raise
        return Recording(self, conversation, _MAX_STATS_BYTES + events * _MAX_EVENT_BYTES)


class _Conversation:
    """A connection to a server's status socket, with a deadline that ``renew()`` extends.

    Every failure is a ``ConnectionError`` that names the process.
    """

    def __init__(self, server: LiveServer, timeout: float) -> None:
        self._server = server
        self.renew(timeout)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(f"\0rdma_transport.status.{server.user}.{server.pid}")
            self._check_user()
        except OSError as error:
            self.close()
            raise self._failure(error) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "_Conversation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def renew(self, timeout: float) -> None:
        self._deadline = time.monotonic() + timeout

    def request(self, line: str) -> None:
        try:
            self._limit()
            # a server that refuses may have closed already
            with suppress(BrokenPipeError):
                self._socket.sendall(line.encode() + b"\n")
        except OSError as error:
            raise self._failure(error) from error

    def finish(self) -> None:
        """Request the recorded events."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise self._failure(error) from error

    def read(self, most: int) -> dict[str, Any]:
        return self._object(b"".join(self._parts(most)))

    def read_line(self, most: int) -> dict[str, Any]:
        text = b""
        for part in self._parts(most):
            text += part
            if part.endswith(b"\n"):
                break
        return self._object(text)

    def _connect(self, name: str) -> None:
        while True:
            self._limit()
            try:
                self._socket.connect(name)
                return
            except BlockingIOError:  # the server's backlog is full
                time.sleep(0.02)

    def _check_user(self) -> None:
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        _, user, _ = _UCRED.unpack(credentials)
        if user not in (self._server.user, 0):
            raise ConnectionError(
                f"the status socket of process {self._server.pid} was opened by user {user}, not "
                f"by user {self._server.user}: its answer is not trusted"
            )

    def _limit(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def _parts(self, most: int) -> Iterator[bytes]:
        size = 0
        try:
            while True:
                self._limit()
                part = self._socket.recv(1 << 20)
                if not part:
                    return
                size += len(part)
                if size > most:
                    raise ConnectionError(
                        f"process {self._server.pid} sent more than {most >> 20} MiB: this is not "
                        "a status of rdma_transport"
                    )
                yield part
        except (TimeoutError, ConnectionResetError) as error:
            raise self._failure(error) from error

    def _object(self, text: bytes) -> dict[str, Any]:
        if not text:
            raise self._failure(None)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError) as error:  # including invalid UTF-8
            what = "not text" if isinstance(error, UnicodeDecodeError) else "not JSON"
            raise ConnectionError(
                f"the answer of process {self._server.pid} is {what}: the process has ended, or it "
                "is not an rdma server"
            ) from error
        if not isinstance(answer, dict):
            raise ConnectionError(f"the answer of process {self._server.pid} is not a status")
        return answer

    def _failure(self, error: OSError | None) -> ConnectionError:
        pid, user = self._server.pid, self._server.user
        if isinstance(error, ConnectionError) and error.errno is None:
            return error  # a sentence already
        if isinstance(error, ConnectionRefusedError):
            return ConnectionError(f"process {pid} no longer has an rdma server: it has ended")
        if isinstance(error, TimeoutError):
            return ConnectionError(f"process {pid} does not answer; check if it is stopped")
        if os.geteuid() not in (user, 0):
            return ConnectionError(
                f"process {pid} belongs to user {user} and answers only to that user and root"
            )
        why = f" ({error})" if error else ""
        return ConnectionError(f"process {pid} ended before it answered{why}")


class Recording:
    """A timeline that a process is recording; ``end()`` returns it."""

    def __init__(self, server: LiveServer, conversation: _Conversation, most: int) -> None:
        self.server = server
        self._conversation = conversation
        self._most = most

    def end(self) -> dict[str, Any]:
        """Stop and return the events in the format of ``native/protocol/trace.h``, times in ns.

        Raises ``ConnectionError`` if the process has ended or does not answer.
        """
        with self._conversation as conversation:
            conversation.renew(_RECORDING_TIMEOUT_SECONDS)
            conversation.finish()
            return conversation.read(self._most)

    def cancel(self) -> None:
        """Stop and discard the events."""
        self._conversation.close()


def servers() -> list[LiveServer]:
    """Return the servers whose status this user may read, sorted by pid.

    They are found in Linux's list of local sockets.
    """
    mine = [one for one in _all_servers() if one.user == os.geteuid() or os.geteuid() == 0]
    return sorted(mine, key=lambda server: server.pid)


def find(which: Sequence[str]) -> list[LiveServer]:
    """Return the servers with the given process ids; all servers for ``all`` or an empty list.

    Processes without a server are skipped. Raises ``ValueError`` for anything that is not a process
    id, and ``LookupError`` with a message if no server is left.
    """
    for one in which:
        if one != "all" and not (one.isascii() and one.isdigit()):
            raise ValueError(f"{one!r} is neither a process id nor 'all'")
    if not which or "all" in which:
        found = servers()
        why = (
            "no task of this user has an rdma server on this host. Start one with protocol='rdma' "
            '(or "rpc_layer": "rdma" in TF_CONFIG). For tasks in a container, run this command '
            "in the container"
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
    return (
        f"process {pid} has no rdma server, or has not started it yet. "
        "List the processes that have one with: rdma-transport status"
    )


def ask(
    asked: list[LiveServer], timeout: float = _TIMEOUT_SECONDS
) -> tuple[dict[int, dict[str, Any]], dict[int, str]]:
    """Ask all servers in parallel; return the answers, and the errors of the others, by pid."""
    answers: dict[int, dict[str, Any]] = {}
    silent: dict[int, str] = {}
    if not asked:
        return answers, silent
    with ThreadPoolExecutor(min(len(asked), _MAX_AT_A_TIME)) as pool:
        for server, answer in [(one, pool.submit(one.stats, timeout)) for one in asked]:
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
