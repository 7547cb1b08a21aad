"""Lines of JSON over a connection, one object each, between two processes of this package."""

import json
import socket
from dataclasses import dataclass
from typing import Any

_LONGEST_LINE = 1 << 16


class OtherSideError(ConnectionError):
    """The other side does not answer, reports an error, or sent something else."""


class GoneError(OtherSideError):
    """The other side ended the connection."""


@dataclass
class Wire:
    """A connection; the other side may take `seconds` for an answer."""

    connection: socket.socket
    seconds: float = 20.0
    rest: bytes = b""

    def tell(self, **message: Any) -> None:
        """Send one line; raise ``OSError`` if the other side is gone."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, seconds: float | None = None) -> dict[str, Any]:
        """Return the next line; raise ``OtherSideError`` if there is none, or if it is an error."""
        self.connection.settimeout(self.seconds if seconds is None else seconds)
        while b"\n" not in self.rest:
            try:
                more = self.connection.recv(_LONGEST_LINE)
            except TimeoutError as error:
                raise OtherSideError(f"the other side stopped responding: {error}") from None
            except OSError:
                more = b""
            if not more or len(self.rest) > _LONGEST_LINE:
                raise GoneError("the other side closed the connection")
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise OtherSideError("the other side is not a doctor or a benchmark of rdma_transport")
        if "error" in message:
            raise OtherSideError(f"the other side: {message['error']}")
        return message

    def bytes_in(self, message: dict[str, Any], key: str) -> bytes:
        """Return the bytes of one field of a message."""
        try:
            return bytes.fromhex(message[key])
        except (KeyError, TypeError, ValueError):
            raise OtherSideError(f"the other side sent no valid {key}") from None
