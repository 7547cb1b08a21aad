"""How a launcher of another host joins an elastic job, authenticated by the job's secret."""

import json
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rdma_transport import __version__
from rdma_transport.elastic.meeting import Line
from rdma_transport.errors import BadInputError
from rdma_transport.json_lines import OtherSideError, Wire
from rdma_transport.slurm import Step

_SERVICE = "launchers"
_RETRY = 0.1
_CONNECT = 3.0  # seconds


@dataclass(frozen=True)
class Hello:
    """What a launcher says of itself."""

    node: int
    slots: int
    version: str = __version__


class Greeting:
    """The first launcher's side: it gives others the ranks with which theirs are started.

    `nodes`: how many ranks those have with which the job begins.
    """

    def __init__(self, nodes: Mapping[int, int]) -> None:
        self.job = secrets.token_hex(8)
        self._ranks: dict[int, range] = {}
        self._next = 0
        self.expect(nodes)

    def expect(self, nodes: Mapping[int, int]) -> None:
        """Give launchers ranks in the order of their numbers, whichever calls first."""
        for node in sorted(nodes):
            self._ranks_of(node, nodes[node])

    def answer(self, line: Line, message: dict[str, Any]) -> Hello | None:
        """Answer the first message of a launcher; None: it is refused.

        Raise ``KeyError`` or ``TypeError`` if it is no such message.
        """
        try:
            handshake = answering()
            checked = handshake.check(bytes.fromhex(message["request"]))
            hello = Hello(**json.loads(checked["channel"]))
            if hello.version != __version__:
                raise ValueError(
                    f"it has rdma_transport {hello.version}, and the first launcher {__version__}. "
                    "Install the same build on all hosts"
                )
            if min(hello.node, hello.slots) < 1:
                raise ValueError("it has the first launcher's number, or starts no ranks")
        except (ValueError, PermissionError) as error:
            line.send(error=str(error))
            return None
        watch(line.socket)
        ranks = self._ranks_of(hello.node, hello.slots)
        welcome = {"first": ranks.start, "size": self._next, "job": self.job}
        line.send(reply=handshake.reply(json.dumps(welcome).encode(), "").hex())
        return hello

    def _ranks_of(self, node: int, slots: int) -> range:
        if len(self._ranks.get(node, ())) < slots:
            self._ranks[node] = range(self._next, self._next + slots)
            self._next += slots
        return self._ranks[node]


def join(hello: Hello, host: str, port: int, seconds: float) -> tuple[socket.socket, list[Step]]:
    """Connect to the first launcher; return the connection, and the ranks to start.

    It may start later, by so many seconds. Raise ``BadInputError`` if it does not, or refuses.
    """
    from rdma_transport import _native

    try:
        handshake = _native.AskingBootstrap(_SERVICE, _secret())
        request = handshake.request(f"node {hello.node}", 0, json.dumps(asdict(hello)).encode())
    except ValueError as error:
        raise BadInputError(str(error)) from None
    connection = _connected(host, port, time.monotonic() + seconds, seconds)
    wire = Wire(connection, _CONNECT)
    try:
        wire.tell(request=request.hex())
        reply = handshake.reply(wire.bytes_in(wire.hear(), "reply"))
        welcome = json.loads(reply["channel"])
        first, size, job = int(welcome["first"]), int(welcome["size"]), str(welcome["job"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        connection.close()
        told = isinstance(error, (OtherSideError, PermissionError))
        why = str(error) if told else f"no answer ({error!r})"
        raise BadInputError(f"cannot join the elastic job at {host}:{port}: {why}") from None
    return connection, [
        Step(first + local, size, local, hello.slots, 0, 1, host, job)
        for local in range(hello.slots)
    ]


def watch(connection: socket.socket) -> None:
    """Notice when the other host is gone or cannot be reached, as ranks notice it."""
    from rdma_transport.settings import read
    from rdma_transport.units import parse_seconds

    limit = parse_seconds(read().value("PEER_TIMEOUT"))
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_USER_TIMEOUT, max(int(limit * 1000), 1)),
        (socket.TCP_NODELAY, 1),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _connected(host: str, port: int, deadline: float, seconds: float) -> socket.socket:
    while True:
        try:
            connection = socket.create_connection((host, port), _CONNECT)
            # A connection to a local port that nobody listens at can connect to itself.
            if connection.getsockname() != connection.getpeername():
                watch(connection)
                return connection
            connection.close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise BadInputError(
                    f"no launcher of an elastic job listens at {host}:{port} after {seconds:g} s: "
                    f"{error.strerror or error}. The one with --node-rank 0 must run there"
                ) from None
        time.sleep(_RETRY)


def _secret() -> str:
    from rdma_transport.settings import read

    return read().value("SECRET_FILE")


def answering() -> Any:
    """Return the first launcher's side of a handshake; raise ``ValueError`` without the secret."""
    from rdma_transport import _native

    return _native.AnsweringBootstrap(_SERVICE, _secret())
