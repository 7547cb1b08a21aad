"""Where the members of an elastic job reach their launcher: a socket in the job's own folder."""

import contextlib
import json
import selectors
import socket
from pathlib import Path
from typing import Any

from rdma_transport.errors import BadInputError

_LINE = 1 << 16  # bytes


class Meeting:
    """A connection to each member, which carries lines of JSON. Not thread-safe.

    Only the user can reach it: the folder is the job's.
    """

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(path))
        except OSError as error:
            self._listener.close()
            raise BadInputError(
                f"cannot listen at {path}: {error.strerror or error}. Set TMPDIR to another folder"
            ) from None
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._rest: dict[socket.socket, bytes] = {}
        self._members: dict[int, socket.socket] = {}

    def receive(self, seconds: float) -> list[tuple[int, dict[str, Any]]]:
        """Wait for messages; return them with the members that sent them.

        That of a member that has gone is empty.
        """
        found: list[tuple[int, dict[str, Any]]] = []
        for key, _ in self._selector.select(seconds):
            source: Any = key.fileobj
            if source is self._listener:
                self._accept()
            else:
                found += self._read(source)
        return found

    def send(self, member: int, **message: Any) -> None:
        """Send a message, which is lost if the member has gone."""
        if member in self._members:
            with contextlib.suppress(OSError):
                self._members[member].sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Close all connections."""
        for each in [*self._rest, self._listener]:
            each.close()
        self._selector.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            made, _ = self._listener.accept()
            made.settimeout(1.0)
            self._rest[made] = b""
            self._selector.register(made, selectors.EVENT_READ)

    def _read(self, source: socket.socket) -> list[tuple[int, dict[str, Any]]]:
        try:
            more = source.recv(_LINE)
        except OSError:
            more = b""
        *lines, rest = (self._rest[source] + more).split(b"\n")
        self._rest[source] = rest
        found = []
        try:
            for line in lines:
                message = json.loads(line)
                member = int(message["member"])
                if self._members.setdefault(member, source) is source:
                    found.append((member, message))
                else:  # a process that the member started
                    source.sendall(b'{"error": "another process of this rank takes part"}\n')
        except (OSError, ValueError, KeyError, TypeError):
            more = b""
        if not more or len(rest) > _LINE:
            found += self._drop(source)
        return found

    def _drop(self, source: socket.socket) -> list[tuple[int, dict[str, Any]]]:
        gone = [member for member, wire in self._members.items() if wire is source]
        for member in gone:
            del self._members[member]
        self._selector.unregister(source)
        del self._rest[source]
        source.close()
        return [(member, {}) for member in gone]
