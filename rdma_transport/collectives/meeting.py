"""Where rank 0 meets the others: one listener for all communicators that connect there."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from rdma_transport import _native, sockets
from rdma_transport._fabric import FabricConnectionError
from rdma_transport.collectives.wire import Deadline, Wire

SERVICE = "collectives"
_HELLO_TIMEOUT = 5.0  # seconds, for a connection to say what it wants
_MOST = 4096  # callers that wait


@dataclass(frozen=True)
class Caller:
    """A rank that has called, and waits for an answer."""

    wire: Wire
    handshake: Any
    key: bytes  # that only it and rank 0 know
    hello: dict[str, Any]


class MeetingPlace:
    """A host and port at which rank 0 takes calls.

    A call that is meant for another communicator of this process waits until that one takes it.
    Thread-safe.
    """

    _places: ClassVar[dict[tuple[str, int], "MeetingPlace"]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._users = 0
        self._busy = False  # a thread takes calls
        self._waiting: list[Caller] = []

    @classmethod
    @contextlib.contextmanager
    def at(cls, host: str, port: int) -> Iterator["MeetingPlace"]:
        """Listen there; raise ``FabricConnectionError``."""
        with cls._lock:
            place = cls._places.setdefault((host, port), cls(host, port))
        with place._changed:
            if place._listener is None:
                place._listener = _listening(host, port)
            place._users += 1
        try:
            yield place
        finally:
            with place._changed:
                place._users -= 1
                if not place._users:
                    place._listener.close()
                    place._listener = None

    def next(self, purpose: str, secret: str, deadline: Deadline) -> Caller:
        """Return the next rank that calls for a purpose; raise ``TimeoutError``."""
        while True:
            with self._changed:
                if caller := self._taken(purpose):
                    caller.wire.deadline = deadline
                    return caller
                if self._busy:
                    deadline.wait(self._wait)
                    continue
                self._busy = True
            heard = None
            try:
                heard = self._hear(secret, deadline)
            finally:
                with self._changed:
                    self._busy = False
                    if heard:
                        self._waiting.append(heard)
                    self._changed.notify_all()

    def _taken(self, purpose: str) -> Caller | None:
        for caller in [each for each in self._waiting if each.wire.is_closed()]:
            self._waiting.remove(caller)
            caller.wire.close()
        for caller in self._waiting:
            if caller.hello.get("purpose") == purpose:
                self._waiting.remove(caller)
                return caller
        return None

    def _wait(self, timeout: float) -> None:
        if not self._changed.wait(timeout):
            raise TimeoutError

    def _hear(self, secret: str, deadline: Deadline) -> Caller | None:
        connection = deadline.wait(self._accept)
        wire = Wire(connection, Deadline(min(deadline.left(), _HELLO_TIMEOUT)))
        handshake = _native.AnsweringBootstrap(SERVICE, secret)
        try:
            checked = handshake.check(bytes.fromhex(wire.receive()["request"]))
            hello = json.loads(checked["channel"])
            if not isinstance(hello, dict):
                raise ValueError("it sent no message")
            if len(self._waiting) >= _MOST:
                raise ValueError("too many ranks wait for communicators that rank 0 does not have")
        except (OSError, ValueError, KeyError, TypeError) as error:
            refuse(wire, error)
            return None
        return Caller(wire, handshake, checked["key"], hello)

    def _accept(self, timeout: float) -> socket.socket:
        assert self._listener is not None
        self._listener.settimeout(timeout)
        return self._listener.accept()[0]


def refuse(wire: Wire, error: Exception) -> None:
    """Tell a rank why it cannot take part."""
    with contextlib.suppress(OSError):
        wire.send(error=str(error) or repr(error))
    wire.close()


def _listening(host: str, port: int) -> socket.socket:
    try:
        return sockets.listening(host, port)
    except OSError as error:
        raise FabricConnectionError(
            f"rank 0 cannot listen at {host}:{port}: {error.strerror or error}. Set MASTER_ADDR "
            "and MASTER_PORT to a free port of its host"
        ) from None
