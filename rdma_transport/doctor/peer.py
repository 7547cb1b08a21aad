"""Another task: whether it is there, has the plugin, and which path tensors would take to it."""

import contextlib
import socket
import statistics
import time
from collections.abc import Iterator
from typing import Any

from rdma_transport import _native
from rdma_transport.doctor import mending, secret
from rdma_transport.doctor.case import Case
from rdma_transport.doctor.meeting import GREETING, MeetingError, Wire, visit
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result, setting
from rdma_transport.doctor.transfer import CorruptedError
from rdma_transport.doctor.worker_service import NoAnswerError, RefusedError, WorkerService
from rdma_transport.fabric import Channel, Device, FabricError

PINGS = 200
_GREETING_SECONDS = 1.0  # a doctor greets at once; a gRPC server may wait for its client

LISTEN = {
    "shell": "rdma-transport doctor --listen {port}    # there; or start the task",
    "docker": "docker run --network=host ...    # or -p {port}:{port}",
    "kubernetes": "containerPort: {port} of the task's pod, and its IP or a Service as address",
}


def place(text: str) -> tuple[str, int]:
    """Take ``HOST:PORT``, ``[IPv6]:PORT`` or ``grpc://HOST:PORT`` apart; raise ``ValueError``."""
    host, _, port = text.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"--peer {text}: this is not HOST:PORT, such as 10.0.0.2:2222")
    return host.strip("[]"), int(port)


def examine(case: Case) -> Iterator[Result]:
    """The checks of this family, each as far as the one before it allows."""
    host, port = place(case.peer)
    mend = {where: line.format(port=port) for where, line in LISTEN.items()}
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        why = "the name cannot be resolved here"
        mend = {"shell": f"getent hosts {host}    # /etc/hosts, or the resolver's configuration"}
        yield Result("peer_address", FAIL, f"{host}: {error.strerror or error}", why, mend)
        return
    addresses = sorted({str(entry[4][0]) for entry in found})
    try:
        connection = socket.create_connection((host, port), case.wait)
    except OSError as error:
        why = "no TCP connection: nobody listens there, or a firewall drops it"
        what = f"{host}:{port} ({', '.join(addresses)}): {error.strerror or error}"
        yield Result("peer_address", FAIL, what, why, mend)
        return
    with connection:
        what = f"{host}:{port} is {connection.getpeername()[0]}, and takes connections"
        yield Result("peer_address", PASS, what)
        wire = Wire(connection)
        greeting = _greeting(wire)
        if greeting is not None:
            yield from _with_doctor(case, wire, greeting)
            return
    yield from _with_server(case, host, port, mend)


def _greeting(wire: Wire) -> dict[str, Any] | None:
    """What a doctor says first; ``None``: this is none."""
    wire.connection.settimeout(_GREETING_SECONDS)
    try:
        if wire.connection.recv(1, socket.MSG_PEEK) != b"{":
            return None
        message = wire.hear()
    except (OSError, MeetingError):
        return None
    return message if GREETING in message else None


def _with_doctor(case: Case, wire: Wire, greeting: dict[str, Any]) -> Iterator[Result]:
    yield Result("peer_server", PASS, f"a doctor of rdma_transport {greeting[GREETING]} listens")
    yield Result("peer_plugin", SKIP, "not known: no task runs there")
    try:
        moved, device = visit(wire, greeting)
    except (FabricError, MeetingError, OSError, ValueError) as error:
        yield _by_grpc(case, str(error).split("\n")[0])
        yield Result("peer_transfer", SKIP, "not tried: there is no path for it")
        return
    except CorruptedError as error:
        why = "do not use this path: see firmware, drivers and memory of both hosts"
        yield Result("peer_transfer", FAIL, str(error), why, mending.COMPARE)
        return
    yield _path(case, moved.fabric, f"{moved.fabric}, {moved.route}; there: {device}")
    yield Result("peer_transfer", PASS, str(moved))


def _with_server(case: Case, host: str, port: int, mend: dict[str, str]) -> Iterator[Result]:
    try:
        service = WorkerService(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except ImportError as error:
        shell = {"shell": "pip install grpcio"}
        yield Result("peer_server", FAIL, str(error), "grpcio comes with TensorFlow", shell)
        return
    with contextlib.closing(service):
        try:
            task = service.task(case.wait)
        except NoAnswerError as error:
            why = "something takes TCP connections there, and does not answer a gRPC call"
            yield Result("peer_server", FAIL, str(error), why, mend)
            return
        except RefusedError as error:
            why = "it speaks gRPC, but is no TensorFlow server"
            yield Result("peer_server", FAIL, str(error), why, mend)
            return
        yield Result("peer_server", PASS, f"TensorFlow's server of {task}")
        yield from _with_task(case, service)


def _with_task(case: Case, service: WorkerService) -> Iterator[Result]:
    try:
        device = Device.open()
    except FabricError as error:
        reason = str(error).split("\n")[0]
        yield Result("peer_plugin", SKIP, "not asked: this host has no fabric to ask with")
        yield _by_grpc(case, reason)
        return
    with device:
        channel = device.open_channel()
        try:
            reply = service.bootstrap(channel.address, case.wait)
        except RefusedError:
            why = "its server was made with protocol='grpc', or the plugin is not installed there"
            mend = {
                "shell": "pip install rdma_transport    # there; and protocol='rdma' in its "
                'Server, or "rpc_layer": "rdma" in its TF_CONFIG',
                "docker": "RUN pip install rdma_transport",
            }
            yield Result("peer_plugin", _worst(case), "it has no plugin in use", why, mend)
            yield _by_grpc(case, "it runs without the plugin (rdma_transport)", mend)
            return
        except NoAnswerError as error:
            yield Result("peer_plugin", FAIL, str(error), "it answered before, and not to this")
            return
        except (PermissionError, ValueError) as error:
            yield Result("peer_plugin", SKIP, "there, and not to be trusted")
            yield _by_grpc(case, str(error))
            return
        yield _plugin(reply)
        yield from _connected(case, channel, reply)


def _plugin(reply: dict[str, Any]) -> Result:
    found = f"there, with version {reply['version']} of the protocol"
    if reply["version"] == _native.PROTOCOL_VERSION:
        return Result("peer_plugin", PASS, found)
    why = f"here it is version {_native.PROTOCOL_VERSION}: such tasks use gRPC between them"
    mend = {"shell": "pip install --upgrade rdma_transport    # the same version everywhere"}
    return Result("peer_plugin", FAIL, found, why, mend)


def _connected(case: Case, channel: Channel, reply: dict[str, Any]) -> Iterator[Result]:
    if not reply["channel"]:
        yield _by_grpc(case, reply["refusal"])
        return
    try:
        channel.connect(reply["channel"], active=True, key=reply["key"])
        channel.wait_connected(case.wait)
    except FabricError as error:
        yield _by_grpc(case, str(error).split("\n")[0])
        return
    try:
        seconds = round_trips(channel)
    except FabricError as error:
        why = "the connection came up, and then nothing passed"
        yield Result("peer_path", FAIL, str(error).split("\n")[0], why, mending.COMPARE)
        return
    found = f"{channel.fabric}, {channel.route}; "
    found += f"there and back in {1e6 * statistics.median(seconds):.1f} µs (median of {PINGS})"
    yield _path(case, channel.fabric, found)
    why = "a task's memory is not written by a visitor: `doctor --listen` there moves real bytes"
    yield Result("peer_transfer", SKIP, "not tried with a task", why)


def round_trips(channel: Channel) -> list[float]:
    """Return the seconds of each ping that the task answered on the fabric."""
    seconds = []
    for _ in range(PINGS):
        began = time.perf_counter()
        channel.notify(_native.ping())
        while not _native.is_pong(channel.receive(timeout=5)):
            pass  # announcements to all peers come too
        seconds.append(time.perf_counter() - began)
    return seconds


def _path(case: Case, fabric: str, found: str) -> Result:
    if case.required and fabric != case.required:
        return Result("peer_path", FAIL, found, f"--fabric {case.required} was asked for")
    return Result("peer_path", PASS, found)


def _worst(case: Case) -> str:
    return FAIL if case.required or case.environment.value("FALLBACK") == "forbid" else WARN


def _by_grpc(case: Case, reason: str, mend: dict[str, str] | None = None) -> Result:
    found = f"gRPC: {reason}"
    why = "tensors to it are serialised and copied, as without the plugin"
    if "RDMA_TRANSPORT_FABRIC=grpc" in reason:
        mend = setting("FABRIC", "auto")
    if "RDMA_TRANSPORT_SECRET_FILE" in reason:
        mend = secret.fixes()
    return Result("peer_path", _worst(case), found, why, mend or mending.COMPARE)
