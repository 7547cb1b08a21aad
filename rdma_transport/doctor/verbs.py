"""InfiniBand and RoCE: library, devices, port, GID, MTU, locked memory, fork, and a transfer."""

import os
import platform
import re
from typing import Any

from graph_analyzer.units import format_bytes
from rdma_transport.doctor import mending
from rdma_transport.doctor.case import Case
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result, setting
from rdma_transport.doctor.transfer import check_transfer

NODES = "/dev/infiniband"
COPIES_AT_FORK = (5, 12)  # the first Linux that gives a child its own copy of pinned pages
_RECOMMENDED_MTU = 1024


def check_library(case: Case) -> Result:
    """The host's libibverbs can be loaded, and is new enough."""
    library = case.survey["library"]
    if library["error"]:
        missing = SKIP if not case.has_hardware and case.fabric != "verbs" else FAIL
        why = "without it there is no verbs fabric: other hosts are reached by gRPC"
        return Result(
            "verbs_library", missing, library["error"].split("; ")[0], why, mending.LIBRARY
        )
    return Result("verbs_library", PASS, os.path.realpath(library["file"]))


def check_devices(case: Case) -> Result:
    """The kernel has RDMA devices, and this user may open them."""
    kernel = case.surroundings.names("/sys/class/infiniband")
    nodes = [name for name in case.surroundings.names(NODES) if name.startswith("uverbs")]
    library = sorted({port["device"] for port in case.survey["ports"]})
    if case.malformed_devices:
        return _none("rdma_devices", case)
    if not kernel and not library:
        status = FAIL if case.fabric == "verbs" else SKIP
        why = case.survey["error"]
        return Result("rdma_devices", status, "no RDMA device on this host", why, mending.DEVICE)
    if kernel and not nodes:
        why = f"the kernel has {', '.join(kernel)}, but there is no {NODES}/uverbs*: "
        why += "the module ib_uverbs is not loaded, or this container was given no devices"
        return Result("rdma_devices", FAIL, f"{NODES} is missing", why, mending.NODES)
    closed = [name for name in nodes if not _may_use(case, name)]
    if closed:
        what = ", ".join(f"{NODES}/{name}" for name in closed)
        why = f"user {os.geteuid()} may not read and write it"
        return Result("rdma_devices", FAIL, f"no access to {what}", why, mending.NODES)
    if not library:
        why = "libibverbs shows none of them: their drivers are missing"
        return Result("rdma_devices", FAIL, ", ".join(kernel), why, mending.LIBRARY)
    return Result("rdma_devices", PASS, ", ".join(library))


def _may_use(case: Case, node: str) -> bool:
    path = case.surroundings.root / NODES.lstrip("/") / node
    return os.access(path, os.R_OK | os.W_OK)


def _none(name: str, case: Case) -> Result:
    """What a check says that has no port to look at."""
    what = "no port can be used" if case.has_hardware else "no RDMA device on this host"
    if case.malformed_devices:
        what = "not looked at: RDMA_TRANSPORT_DEVICES is malformed"
    return Result(name, SKIP, what)


def _reasons(ports: list[dict[str, Any]]) -> str:
    return "; ".join(f"{port['name']}: {port['reason']}" for port in ports if port["reason"])


def check_port(case: Case) -> Result:
    """A port is up and may be used; says why the others are not."""
    ports: list[dict[str, Any]] = case.survey["ports"]
    if not ports:
        return _none("rdma_port", case)
    active = [port for port in ports if port["active"]]
    if not active:
        why = "the verbs fabric is left out: other hosts are reached by gRPC"
        return Result("rdma_port", FAIL, _reasons(ports), why, _mend_port(ports))
    best = case.port or active[0]
    found = f"{best['name']} is {best['state']} ({best['link_layer']})"
    others = _reasons([port for port in ports if port is not best])
    found += f"; not used: {others}" if others else ""
    named = {port["name"] for port in ports}
    missing = [line for line in case.survey["left_out"] if line.partition(": ")[0] not in named]
    if missing:
        why = "; ".join(missing)
        return Result("rdma_port", WARN, found, why, setting("DEVICES", ",".join(sorted(named))))
    return Result("rdma_port", PASS, found)


def _mend_port(ports: list[dict[str, Any]]) -> dict[str, str]:
    reasons = _reasons(ports)
    if "RDMA_TRANSPORT_DEVICES" in reasons:
        return setting("DEVICES", ",".join(port["name"] for port in ports))
    return mending.NODES if "/dev/infiniband" in reasons else mending.PORT


def check_gid(case: Case) -> Result:
    """The port has an address that peers can reach."""
    port = case.port
    if port is None:
        return _without_gid(case)
    if port["link_layer"] == "InfiniBand":
        return Result("gid", PASS, f"LID {port['lid']} (InfiniBand is reached by it)")
    gid = next(each for each in port["gids"] if each["index"] == port["used_gid"])
    found = f"index {gid['index']}: {gid['type']}, {gid['address']}"
    if gid["address"].lower().startswith("fe80"):
        why = "a link-local address reaches only the same Ethernet segment"
        return Result("gid", WARN, found, why, mending.NETWORK)
    if gid["type"] == "RoCE v1":
        why = "RoCE v1 is not routed: it reaches only the same Ethernet segment"
        return Result("gid", WARN, found, why, mending.NETWORK)
    return Result("gid", PASS, found)


def _without_gid(case: Case) -> Result:
    """No port is used: because of a GID or a partition key, or for another check's reason."""
    active = [port for port in case.survey["ports"] if port["active"]]
    for name in ("GID_INDEX", "PKEY"):
        wrong = [port for port in active if f"RDMA_TRANSPORT_{name}" in port["reason"]]
        if wrong:
            why = "the setting names an entry that the port's table does not have"
            return Result("gid", FAIL, _reasons(wrong), why, setting(name, "auto"))
    bare = [port for port in active if "GID" in port["reason"]]
    if not bare:
        return _none("gid", case)
    why = "GIDs come from the IP addresses of the port's interface in this network namespace"
    return Result("gid", FAIL, _reasons(bare), why, mending.NETWORK)


def check_mtu(case: Case) -> Result:
    """Packets are of a decent size, and as large as the settings ask for."""
    port = case.port
    if port is None:
        return _none("mtu", case)
    found = f"{port['used_mtu']} bytes a packet; {port['mtu']} active, {port['max_mtu']} at most"
    jumbo = {"shell": "ip link set dev eth0 mtu 9000    # the port's interface, and every switch"}
    asked = case.environment.value("MTU")
    if asked.isdigit() and int(asked) > port["mtu"]:
        why = f"RDMA_TRANSPORT_MTU={asked} asks for more than the port has active"
        return Result("mtu", WARN, found, why, jumbo)
    if port["mtu"] < _RECOMMENDED_MTU:
        why = "so small packets cost bandwidth: the interface's own MTU is below 1500"
        return Result("mtu", WARN, found, why, jumbo)
    return Result("mtu", PASS, found)


def check_memlock(case: Case) -> Result:
    """As much memory may be locked as the fabric, or the plan, needs."""
    limit: int | None = case.survey["memlock"]["limit"]
    ring = case.size("RING")
    least: int = case.survey["memlock"]["begin"]
    whose = f"a server needs {format_bytes(least)} to begin with"
    if case.need:
        least = max(least, case.need.locked(ring))
        whose = f"the plan needs {format_bytes(least)} for {case.need.task}"
    found = f"{'no limit' if limit is None else format_bytes(limit)}; {whose}"
    mend = mending.from_help(case.survey["memlock"]["help"])
    if limit is None:
        return Result("memlock", PASS, found)
    if not case.has_hardware and case.fabric != "verbs":
        return Result("memlock", SKIP, f"{found}; nothing is locked here: no RDMA device")
    if limit < least:
        why = "the card pins what it reads and writes (RLIMIT_MEMLOCK)"
        return Result("memlock", FAIL, found, why, mend)
    why = (
        "beside what crosses, the arena holds all large tensors of the task, and may be pinned "
        f"whole: up to {format_bytes(case.arena_limit)} (RDMA_TRANSPORT_ARENA_SIZE)"
    )
    return Result("memlock", WARN, found, why, mend)


def check_fork(case: Case) -> Result:
    """A fork (subprocess, multiprocessing) cannot take pages from under the card."""
    state = case.survey["library"].get("fork")
    if state is None or not case.has_hardware:
        return _none("fork", case)
    kernel = re.match(r"(\d+)\.(\d+)", platform.release())
    recent = kernel is not None and (int(kernel[1]), int(kernel[2])) >= COPIES_AT_FORK
    if state == "unneeded" or (state == "unknown" and recent):
        return Result("fork", PASS, "safe: this kernel copies pinned pages for the child")
    if state == "enabled":
        return Result("fork", PASS, "safe: libibverbs keeps pinned pages from the child")
    why = "after a fork the queues of libibverbs may be in pages that the card does not see"
    return Result("fork", WARN, f"libibverbs says: {state}", why, mending.FORK)


def check_loopback(case: Case) -> Result:
    """The port really moves bytes, from this process to itself."""
    if case.port is None:
        return _none("verbs_transfer", case)
    return check_transfer("verbs", {"shell": "dmesg | tail -20; ibv_devinfo -v"})


CHECKS = (
    *(check_library, check_devices, check_port, check_gid, check_mtu, check_memlock, check_fork),
    check_loopback,
)
