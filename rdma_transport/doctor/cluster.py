"""Checks of a whole TF_CONFIG: the protocol, this task's address, and every other task."""

import contextlib
import difflib
import errno
import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdma_transport import _native
from rdma_transport.command_line import split_place
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result
from rdma_transport.doctor.worker_service import NoAnswerError, RefusedError, WorkerService
from rdma_transport.errors import BadInputError

_OUTSIDE = ("evaluator",)  # a task that the cluster need not name
_AT_ONCE = 64
_MOST_SHOWN = 16
_SET = "export TF_CONFIG="
_FIX = {
    "shell": _SET + '\'{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}, "rpc_layer": "rdma"}\''
}
_RPC_LAYER = {
    "shell": _SET + '"$(echo "$TF_CONFIG" | python3 -c \'import json, sys; '
    'print(json.dumps(json.load(sys.stdin) | {"rpc_layer": "rdma"}))\')"    '
    '# or in the script: tf.distribute.Server(..., protocol="rdma")'
}


class _WrongError(Exception):
    """What is wrong with a TF_CONFIG."""


@dataclass(frozen=True)
class Cluster:
    """A TF_CONFIG: the address of each task, as ``/job:ps/task:0``, and which of them is this."""

    addresses: dict[str, str]
    own: str
    rpc_layer: str


def text_of(given: str) -> str:
    """Return the JSON text that ``--tf-config`` gives: itself, or the content of a file."""
    if given.lstrip().startswith("{"):
        return given
    try:
        return Path(given).read_text()
    except (OSError, ValueError) as error:
        raise BadInputError(f"--tf-config {given}: {error}") from None


def parse(text: str) -> Cluster:
    """Parse a TF_CONFIG; raise ``_WrongError``."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise _WrongError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("cluster"), dict):
        raise _WrongError('it has no "cluster" with the addresses of each job')
    addresses: dict[str, str] = {}
    for job, listed in found["cluster"].items():
        tasks = listed.items() if isinstance(listed, dict) else enumerate(_as_list(job, listed))
        for index, address in tasks:
            addresses[f"/job:{job}/task:{index}"] = _checked(job, address, addresses)
    task = found.get("task")
    if not isinstance(task, dict) or "type" not in task or "index" not in task:
        raise _WrongError('it has no "task" with "type" and "index", which name this task')
    own = f"/job:{task['type']}/task:{task['index']}"
    if own not in addresses and task["type"] not in _OUTSIDE:
        there = ", ".join(f"{job} ({len(listed)})" for job, listed in found["cluster"].items())
        raise _WrongError(f"its task is {own}, but the cluster has {there}; indices begin at 0")
    return Cluster(addresses, own, str(found.get("rpc_layer", "")))


def _as_list(job: str, listed: Any) -> list[Any]:
    if not isinstance(listed, list):
        raise _WrongError(f'the addresses of "{job}" are not a list')
    return listed


def _checked(job: str, address: Any, known: dict[str, str]) -> str:
    place = split_place(address) if isinstance(address, str) else None
    if place is None or not all(place):
        raise _WrongError(f'"{address}" of "{job}" is not HOST:PORT')
    for other, there in known.items():
        if there == address:
            raise _WrongError(f"{address} is the address of two tasks: {other} and one of {job}")
    return str(address)


def examine(context: Context) -> Iterator[Result]:
    """Run the checks of this family, if there is a TF_CONFIG."""
    if not context.tf_config:
        return
    try:
        cluster = parse(context.tf_config)
    except _WrongError as error:
        why = "TensorFlow cannot start a task from it, or starts it as another one"
        yield Result("cluster", FAIL, f"TF_CONFIG: {error}", why, _FIX)
        return
    yield _protocol(cluster)
    if cluster.own in cluster.addresses:
        yield _own_address(context, cluster)
    yield _others(context, cluster)


def _protocol(cluster: Cluster) -> Result:
    found = f"{cluster.own} of {len(cluster.addresses)} tasks, "
    found += f'"rpc_layer": "{cluster.rpc_layer}"' if cluster.rpc_layer else 'no "rpc_layer"'
    if cluster.rpc_layer in ("rdma", "grpc+rdma", "grpc+verbs"):
        return Result("cluster", PASS, found)
    if cluster.rpc_layer in ("", "grpc"):
        why = "unless the script names the protocol, this task uses gRPC"
        return Result("cluster", WARN, found, why, _RPC_LAYER)
    near = difflib.get_close_matches(cluster.rpc_layer.lower(), ["rdma", "grpc"], 1, 0.5)
    why = "TensorFlow has no such protocol: its server does not start, and the other tasks wait"
    why += f"; did you mean {near[0]}?" if near else ""
    return Result("cluster", FAIL, found, why, _RPC_LAYER)


def _own_address(context: Context, cluster: Cluster) -> Result:
    """Whether this task can listen at its address, or does already."""
    name, address = "cluster_address", cluster.addresses[cluster.own]
    host, port = split_place(address) or ("", 0)
    try:
        places = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port)}
    except OSError as error:
        return Result(name, FAIL, f"{address}: {error.strerror}", *_unresolved(host))
    try:
        with socket.create_server(("0.0.0.0", port)):  # as TensorFlow binds it
            pass
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            said, _ = _answer(context, cluster.own, address)
            if said == PASS:
                return Result(name, PASS, f"{cluster.own} serves at {address} already")
        why = "this task cannot listen there: its server does not start"
        fix = {"shell": f"ss -ltnp sport = :{port}    # shows the process; or choose another port"}
        return Result(name, FAIL, f"port {port}: {os.strerror(error.errno or 0)}", why, fix)
    if not any(map(_is_local, places)):
        found = f"{host} is {', '.join(sorted(places))}, which is no address of this host"
        why = "other tasks contact that host, unless it forwards to this one, as for a container"
        fix = {"shell": "ip -brief address    # and correct TF_CONFIG, or the name's address"}
        return Result(name, WARN, found, why, fix)
    return Result(name, PASS, f"{address} is free for this task")


def _is_local(place: str) -> bool:
    family = socket.AF_INET6 if ":" in place else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((place, 0))
        except OSError:
            return False
        return True


def _unresolved(host: str) -> tuple[str, dict[str, str]]:
    why = "this host cannot resolve the name"
    return why, {"shell": f"getent hosts {host}    # fix /etc/hosts, the resolver, or TF_CONFIG"}


def _others(context: Context, cluster: Cluster) -> Result:
    """Whether every other task answers under its name, and has the plugin."""
    others = {task: at for task, at in cluster.addresses.items() if task != cluster.own}
    if not others:
        return Result("cluster_tasks", SKIP, "the cluster has no other task")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        said = list(pool.map(lambda each: _answer(context, *each), others.items()))
    pairs = zip(others.values(), said, strict=True)
    bad = [(at, status, text) for at, (status, text) in pairs if status != PASS]
    good = len(said) - len(bad)
    lines = [f"{good} of {len(said)} other tasks answer and use the plugin"]
    lines += [text for _, _, text in bad[:_MOST_SHOWN]]
    lines += [f"and {len(bad) - _MOST_SHOWN} more"] if len(bad) > _MOST_SHOWN else []
    found = "\n".join(lines)
    if not bad:
        return Result("cluster_tasks", PASS, found)
    status = FAIL if any(status == FAIL for _, status, _ in bad) else WARN
    why = "TensorFlow waits for a task that does not answer, and says nothing meanwhile"
    fix = {"shell": f"rdma-transport doctor --peer {bad[0][0]}    # once it runs: says more of it"}
    return Result("cluster_tasks", status, found, why, fix)


def _answer(context: Context, task: str, address: str) -> tuple[str, str]:
    """Ask a task; return the status, and what there is to say of it."""
    host, port = split_place(address) or ("", 0)
    named = f"{task} at {address}"
    try:
        socket.create_connection((host, port), context.wait).close()
    except socket.gaierror as error:
        return FAIL, f"{named}: cannot resolve {host}: {error.strerror}"
    except OSError as error:
        return WARN, f"{named} does not answer: {error.strerror or error}"
    try:
        service = WorkerService(address)
    except ImportError as error:
        return FAIL, f"{named} accepts connections; asking it needs grpcio: {error}"
    with contextlib.closing(service):
        try:
            there = service.task(context.wait)
        except NoAnswerError as error:
            return WARN, f"{named} accepts connections, but does not answer: {error}"
        except RefusedError as error:
            return FAIL, f"{named}: what listens there is not a TensorFlow server: {error}"
        if there != task:
            return FAIL, f"{named}: {there} serves there"
        return _plugin(context, service, named)


def _plugin(context: Context, service: WorkerService, named: str) -> tuple[str, str]:
    without = FAIL if context.environment.value("FALLBACK") == "forbid" else WARN
    try:
        # With no address of a channel: this asks for a reply, and for no connection.
        version = service.bootstrap(b"", context.wait)["version"]
    except RefusedError:
        return without, f"{named} does not use the plugin: tensors to and from it fall back to gRPC"
    except NoAnswerError as error:
        return WARN, f"{named} answered once, and then no more: {error}"
    except (PermissionError, ValueError) as error:
        return without, f"{named} uses the plugin, but: {error}"
    if version != _native.PROTOCOL_VERSION:
        return without, (
            f"{named} has protocol version {version} of the plugin, this host "
            f"{_native.PROTOCOL_VERSION}: tensors fall back to gRPC"
        )
    return PASS, named
