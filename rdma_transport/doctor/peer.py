"""Checks of a peer: whether it answers, has the plugin, and which transport reaches it."""

import contextlib
import socket
import statistics
import time
from collections.abc import Iterator
from typing import Any

from rdma_transport import _native
from rdma_transport.command_line import parse_place
from rdma_transport.doctor import fixes, libfabric, secret
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.meeting import GREETING, visit, wait_connected
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result, setting
from rdma_transport.doctor.transfer import CorruptedError
from rdma_transport.doctor.worker_service import NoAnswerError, RefusedError, WorkerService
from rdma_transport.fabric import Channel, Device, FabricError
from rdma_transport.json_lines import Wire
from rdma_transport.wheels import WHEEL

PINGS = 200
_GREETING_SECONDS = 1.0  # a doctor greets at once; a gRPC server may wait for its client

LISTEN = {
    "shell": "rdma-transport doctor --listen {port}    # on that host; or start the task",
    "docker": "docker run --network=host ...    # or -p {port}:{port}",
    "kubernetes": "containerPort: {port} in the task's pod; use the pod's IP or a Service",
}


def place(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``[IPv6]:PORT`` or ``grpc://HOST:PORT``; raise ``BadInputError``."""
    return parse_place(text.rpartition("://")[2], "--peer")


def examine(context: Context) -> Iterator[Result]:
    """Run the checks of this family; stop when one makes the next impossible."""
    host, port = place(context.peer)
    fix = {where: line.format(port=port) for where, line in LISTEN.items()}
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        why = "this host cannot resolve the name"
        fix = {"shell": f"getent hosts {host}    # fix /etc/hosts or the resolver's configuration"}
        yield Result("peer_address", FAIL, f"{host}: {error.strerror or error}", why, fix)
        return
    addresses = sorted({str(entry[4][0]) for entry in found})
    try:
        connection = socket.create_connection((host, port), context.wait)
    except OSError as error:
        why = "no TCP connection: no process listens there, or a firewall blocks it"
        what = f"{host}:{port} ({', '.join(addresses)}): {error.strerror or error}"
        yield Result("peer_address", FAIL, what, why, fix)
        return
    with connection:
        what = f"{host}:{port} is {connection.getpeername()[0]} and accepts connections"
        yield Result("peer_address", PASS, what)
        wire = Wire(connection)
        greeting = _greeting(wire)
        if greeting is not None:
            yield from _with_doctor(context, wire, greeting)
            return
    yield from _with_server(context, host, port, fix)


def _greeting(wire: Wire) -> dict[str, Any] | None:
    """The first message of a doctor; ``None`` if the peer is not a doctor."""
    wire.connection.settimeout(_GREETING_SECONDS)
    try:
        if wire.connection.recv(1, socket.MSG_PEEK) != b"{":
            return None
        message = wire.hear()
    except OSError:
        return None
    return message if GREETING in message else None


def _with_doctor(context: Context, wire: Wire, greeting: dict[str, Any]) -> Iterator[Result]:
    yield Result("peer_server", PASS, f"a doctor of rdma_transport {greeting[GREETING]} listens")
    yield Result("peer_plugin", SKIP, "unknown: the peer is a doctor, not a task")
    try:
        moved, device = visit(wire, greeting)
    except (FabricError, OSError, ValueError) as error:
        yield _by_grpc(context, str(error).split("\n")[0])
        yield Result("peer_transfer", SKIP, "not tried: no fabric reaches the peer")
        return
    except CorruptedError as error:
        why = "do not use this transport: check firmware, drivers and memory of both hosts"
        yield Result("peer_transfer", FAIL, str(error), why, fixes.COMPARE)
        return
    yield _transport(context, moved.fabric, f"{moved.fabric}, {moved.route}; peer: {device}")
    yield Result("peer_transfer", PASS, str(moved))


def _with_server(context: Context, host: str, port: int, fix: dict[str, str]) -> Iterator[Result]:
    try:
        service = WorkerService(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except ImportError as error:
        shell = {"shell": "pip install grpcio"}
        yield Result("peer_server", FAIL, str(error), "this check needs grpcio", shell)
        return
    with contextlib.closing(service):
        try:
            task = service.task(context.wait)
        except NoAnswerError as error:
            why = "a process accepts TCP connections there, but does not answer a gRPC call"
            yield Result("peer_server", FAIL, str(error), why, fix)
            return
        except RefusedError as error:
            why = "the peer speaks gRPC, but is not a TensorFlow server"
            yield Result("peer_server", FAIL, str(error), why, fix)
            return
        yield Result("peer_server", PASS, f"TensorFlow server of {task}")
        yield from _with_task(context, service)


def _with_task(context: Context, service: WorkerService) -> Iterator[Result]:
    try:
        device = Device.open()
    except FabricError as error:
        reason = str(error).split("\n")[0]
        yield Result("peer_plugin", SKIP, "not checked: this host has no fabric")
        yield _by_grpc(context, reason)
        return
    with device:
        channel = device.open_channel()
        try:
            reply = service.bootstrap(channel.address, context.wait)
        except RefusedError:
            why = "its server uses protocol='grpc', or the plugin is not installed there"
            fix = {
                "shell": f"pip install {WHEEL}    # on that host; and set protocol='rdma' in "
                'its Server, or "rpc_layer": "rdma" in its TF_CONFIG',
                "docker": f"RUN pip install {WHEEL}",
            }
            yield Result("peer_plugin", _worst(context), "the peer does not use it", why, fix)
            yield _by_grpc(context, "the peer does not run the rdma_transport plugin", fix)
            return
        except NoAnswerError as error:
            why = "the task answered an earlier call, but not this one"
            yield Result("peer_plugin", FAIL, str(error), why)
            return
        except (PermissionError, ValueError) as error:
            yield Result("peer_plugin", SKIP, "installed, but authentication failed")
            yield _by_grpc(context, str(error))
            return
        yield _plugin(reply)
        yield from _connected(context, channel, reply)


def _plugin(reply: dict[str, Any]) -> Result:
    found = f"installed, with protocol version {reply['version']}"
    if reply["version"] == _native.PROTOCOL_VERSION:
        return Result("peer_plugin", PASS, found)
    why = (
        f"this host has protocol version {_native.PROTOCOL_VERSION}: "
        "tasks with different versions fall back to gRPC"
    )
    fix = {"shell": f"pip install {WHEEL}    # the same version on all hosts"}
    return Result("peer_plugin", FAIL, found, why, fix)


def _connected(context: Context, channel: Channel, reply: dict[str, Any]) -> Iterator[Result]:
    if not reply["channel"]:
        yield _by_grpc(context, reply["refusal"])
        return
    try:
        channel.connect(reply["channel"], active=True, key=reply["key"])
        wait_connected(channel, context.wait)
    except FabricError as error:
        yield _by_grpc(context, str(error).split("\n")[0])
        return
    try:
        seconds = round_trips(channel)
    except FabricError as error:
        why = "the connection came up, but no notification passed"
        yield Result("peer_transport", FAIL, str(error).split("\n")[0], why, fixes.COMPARE)
        return
    found = f"{channel.fabric}, {channel.route}; "
    found += f"round trip {1e6 * statistics.median(seconds):.1f} µs (median of {PINGS})"
    yield _transport(context, channel.fabric, found)
    why = "a doctor does not write to a task's memory; run `doctor --listen` there to move bytes"
    yield Result("peer_transfer", SKIP, "not tried with a task", why)


def round_trips(channel: Channel) -> list[float]:
    """Return the round-trip times of pings over the fabric, in seconds."""
    seconds = []
    for _ in range(PINGS):
        began = time.perf_counter()
        channel.notify(_native.ping())
        while not _native.is_pong(channel.receive(timeout=5)):
            pass  # announcements to all peers arrive too
        seconds.append(time.perf_counter() - began)
    return seconds


def _transport(context: Context, fabric: str, found: str) -> Result:
    if context.required and fabric != context.required:
        return Result("peer_transport", FAIL, found, f"--fabric requires {context.required}")
    return Result("peer_transport", PASS, found)


def _worst(context: Context) -> str:
    return FAIL if context.required or context.environment.value("FALLBACK") == "forbid" else WARN


def _by_grpc(context: Context, reason: str, fix: dict[str, str] | None = None) -> Result:
    found = f"gRPC: {reason}"
    why = "gRPC serializes and copies tensors to this peer, as without the plugin"
    if "RDMA_TRANSPORT_FABRIC=grpc" in reason:
        fix = setting("FABRIC", "auto")
    if "RDMA_TRANSPORT_SECRET_FILE" in reason:
        fix = secret.secret_fixes(context.environment.value("SECRET_FILE"))
    if "(libfabric, " in reason:
        fix = libfabric.fix_reach(context)
    return Result("peer_transport", _worst(context), found, why, fix or fixes.COMPARE)
