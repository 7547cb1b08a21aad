"""The first contact of the ranks: they exchange the addresses of their channels over TCP.

Rank 0 listens. Each other rank sends its addresses and receives those that it needs, both signed
with the job's secret if there is one. All ranks must run the same collectives, or get an error.
Then they pass a barrier.
"""

import contextlib
import hmac
import json
import secrets
import socket
import time
from typing import Any

from rdma_transport import __version__, _native
from rdma_transport._collectives import PROTOCOL
from rdma_transport._fabric import FabricConnectionError, FabricTimeoutError
from rdma_transport.collectives.meeting import SERVICE, Caller, MeetingPlace, refuse
from rdma_transport.collectives.ranks import Ranks
from rdma_transport.collectives.wire import Deadline, Wire
from rdma_transport.settings import read

_ONE_BUILD = "Install the same build on all hosts"
_KEY_BYTES = 32
_RETRY = 0.02
_CONNECT = 3.0  # seconds
# Rank 0 closed the listener of another communicator before it took this call.
_NOT_TAKEN = (ConnectionResetError, BrokenPipeError)


class Rendezvous:
    """One rank's part of the first contact. A context manager; not thread-safe."""

    def __init__(self, ranks: Ranks, timeout: float | Deadline) -> None:
        self._ranks = ranks
        self._deadline = timeout if isinstance(timeout, Deadline) else Deadline(timeout)
        self._secret = read().value("SECRET_FILE")
        self._wires: dict[int, Wire] = {}
        self._different = ""  # rank 0: why the ranks cannot work together

    def __enter__(self) -> "Rendezvous":
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires.values():
            wire.close()

    def exchange(self, addresses: list[bytes]) -> tuple[list[bytes], bytes]:
        """Send this rank's addresses, by peer; return those for it, by peer, and a common key.

        The key is empty if the job has no secret. Raise ``FabricTimeoutError``,
        ``FabricConnectionError``, or ``ValueError`` if the secret cannot be read.
        """
        texts = [address.hex() for address in addresses]
        if self._ranks.rank == 0:
            return self._answer(texts)
        return self._ask(texts)

    def barrier(self) -> None:
        """Wait until all ranks have called this. Raise like ``exchange()``."""
        try:
            if self._ranks.rank == 0:
                for wire in self._wires.values():
                    wire.receive()
                for wire in self._wires.values():
                    wire.send(go=True)
            else:
                self._wires[0].send(ready=True)
                self._wires[0].receive()
        except (OSError, ValueError) as error:
            raise _explained(error, "another rank left while the ranks connected") from None

    def gather(self, text: str, key: bytes) -> list[str]:
        """Send a text, return those of all ranks; `key` is the one of ``exchange()``.

        Texts may be long, other than addresses. Raise like ``exchange()``.
        """
        ranks = self._ranks
        own = {"text": text, "mac": self._mac(ranks.rank, text, key)}
        at = f"rank {ranks.rank}"
        try:
            if ranks.rank == 0:
                said: list[dict[str, Any]] = [own] * ranks.size
                for rank, wire in self._wires.items():
                    at = f"rank {rank}"
                    said[rank] = wire.receive()
                for rank, wire in self._wires.items():
                    at = f"rank {rank}"
                    wire.send(said=said)
            else:
                at = "rank 0"
                self._wires[0].send(**own)
                said = self._wires[0].receive()["said"]
            texts = [str(each["text"]) for each in said]
            for rank, each in enumerate(said):
                if not hmac.compare_digest(each["mac"], self._mac(rank, texts[rank], key)):
                    raise ValueError("the message is not signed by it")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _explained(error, f"no message of {at} ") from None
        return texts

    def _mac(self, rank: int, text: str, key: bytes) -> str:
        signed = f"{self._ranks.purpose} {rank} {text}".encode()
        return hmac.digest(key, signed, "sha256").hex()

    def _ask(self, addresses: list[str]) -> tuple[list[bytes], bytes]:
        while True:
            try:
                return self._ask_once(addresses)
            except _NOT_TAKEN:
                time.sleep(_RETRY)

    def _ask_once(self, addresses: list[str]) -> tuple[list[bytes], bytes]:
        ranks = self._ranks
        place = f"rank 0 at {ranks.host}:{ranks.port}"
        handshake = _native.AskingBootstrap(SERVICE, self._secret)
        hello = {"rank": ranks.rank, "size": ranks.size, "job": ranks.job, "addresses": addresses}
        hello |= {"purpose": ranks.purpose, "protocol": PROTOCOL, "version": __version__}
        request = handshake.request(f"rank {ranks.rank}", 0, json.dumps(hello).encode())
        wire = self._reach()
        self._wires[0] = wire
        try:
            wire.send(request=request.hex())
            answer = wire.receive()
            reply = handshake.reply(bytes.fromhex(answer["reply"]))
            told = json.loads(reply["channel"])
            if not isinstance(told, dict):
                raise FabricConnectionError(f"{place} has an older rdma_transport. {_ONE_BUILD}")
            row = [bytes.fromhex(text) for text in told["addresses"]]
            wrapped = bytes.fromhex(answer["key"])
        except _NOT_TAKEN as error:
            if not self._deadline.left():
                raise _explained(error, f"no answer of {place}") from None
            wire.close()
            raise
        except PermissionError as error:
            raise FabricConnectionError(f"{place}: {error}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _explained(error, f"no answer of {place}") from None
        return row, _mask(wrapped, reply["key"])

    def _reach(self) -> Wire:
        """Connect to rank 0, which may start later."""
        ranks = self._ranks
        while True:
            try:
                connection = self._deadline.wait(
                    lambda timeout: socket.create_connection((ranks.host, ranks.port), timeout),
                    longest=_CONNECT,
                )
                # A connection to a local port that nobody listens at can connect to itself.
                if connection.getsockname() != connection.getpeername():
                    return Wire(connection, self._deadline)
                connection.close()
            except OSError as error:
                if self._deadline.left():
                    time.sleep(_RETRY)
                    continue
                raise FabricTimeoutError(
                    f"rank 0 does not listen at {ranks.host}:{ranks.port} after "
                    f"{self._deadline.seconds:g} s: {error.strerror or error}. All ranks must be "
                    "started, with the same MASTER_ADDR and MASTER_PORT"
                ) from None

    def _answer(self, addresses: list[str]) -> tuple[list[bytes], bytes]:
        ranks = self._ranks
        table: dict[int, list[str]] = {0: addresses}
        callers: dict[int, Caller] = {}
        with MeetingPlace.at(ranks.host, ranks.port) as place:
            while len(table) < ranks.size:
                try:
                    caller = place.next(ranks.purpose, self._secret, self._deadline)
                except TimeoutError:
                    missing = [rank for rank in range(ranks.size) if rank not in table]
                    raise FabricTimeoutError(
                        f"{_names(missing)} did not connect to {ranks.host}:{ranks.port} within "
                        f"{self._deadline.seconds:g} s"
                    ) from None
                try:
                    rank, row = self._check(caller.hello, table)
                except (ValueError, KeyError, TypeError) as error:
                    refuse(caller.wire, error)
                    continue
                self._wires[rank], table[rank], callers[rank] = caller.wire, row, caller
        if self._different:
            for wire in self._wires.values():
                with contextlib.suppress(OSError):
                    wire.send(error=self._different)
            raise FabricConnectionError(self._different)
        key = secrets.token_bytes(_KEY_BYTES) if self._secret else b""
        for rank, caller in callers.items():
            row = [table[other][rank] for other in range(ranks.size)]
            reply = caller.handshake.reply(json.dumps({"addresses": row}).encode(), "")
            try:
                self._wires[rank].send(reply=reply.hex(), key=_mask(key, caller.key).hex())
            except OSError as error:
                raise _explained(error, f"rank {rank} left") from None
        return [bytes.fromhex(table[other][0]) for other in range(ranks.size)], key

    def _check(self, hello: dict[str, Any], table: dict[int, list[str]]) -> tuple[int, list[str]]:
        """Return rank and addresses; raise ``ValueError`` with the reason for the other rank."""
        ranks = self._ranks
        rank, row = hello["rank"], hello["addresses"]
        if hello["job"] != ranks.job:
            raise ValueError("it belongs to another job; use another MASTER_PORT")
        if hello["size"] != ranks.size:
            raise ValueError(f"rank 0 was started as one of {ranks.size}, not {hello['size']}")
        if rank in table:
            raise ValueError(f"there is a rank {rank} already")
        if not isinstance(rank, int) or not 0 <= rank < ranks.size or len(row) != ranks.size:
            raise ValueError(f"there is no rank {rank} of {ranks.size}")
        for text in row:
            bytes.fromhex(text)
        if hello.get("protocol") != PROTOCOL:
            # All ranks are to be told, so rank 0 waits for the others first.
            its = hello.get("version", "of an older version")
            self._different = (
                f"rank {rank} has rdma_transport {its}, rank 0 has {__version__}, "
                f"and their collectives differ. {_ONE_BUILD}"
            )
        return rank, row


def _mask(key: bytes, own_key: bytes) -> bytes:
    """Hide, or reveal, the common key by one that only two ranks know."""
    pad = hmac.digest(own_key, b"common key", "sha256")
    return bytes(a ^ b for a, b in zip(key, pad, strict=False))


def _names(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _explained(error: Exception, what: str) -> Exception:
    if isinstance(error, FabricConnectionError):
        return error
    if isinstance(error, TimeoutError):
        return FabricTimeoutError(f"{what}: timed out")
    return FabricConnectionError(f"{what}: {error or repr(error)}")
