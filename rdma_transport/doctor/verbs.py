"""Checks of InfiniBand and RoCE: library, devices, port, GID, MTU, memlock, fork, transfer."""

import os
import platform
import re
from typing import Any

from rdma_transport.doctor import fixes
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result, setting
from rdma_transport.doctor.transfer import check_transfer
from rdma_transport.units import format_bytes

NODES = "/dev/infiniband"
COPIES_AT_FORK = (5, 12)  # the first Linux that gives a child its own copy of pinned pages
_RECOMMENDED_MTU = 1024


def check_library(context: Context) -> Result:
    """libibverbs can be loaded and is recent enough."""
    library = context.survey["library"]
    if library["error"]:
        missing = SKIP if not context.has_hardware and context.fabric != "verbs" else FAIL
        why = f"without it there is no verbs fabric: {context.without_verbs}"
        return Result("verbs_library", missing, library["error"].split("; ")[0], why, fixes.LIBRARY)
    return Result("verbs_library", PASS, os.path.realpath(library["file"]))


def check_devices(context: Context) -> Result:
    """The kernel has RDMA devices, and this user may open them."""
    kernel = context.system.names("/sys/class/infiniband")
    nodes = [name for name in context.system.names(NODES) if name.startswith("uverbs")]
    library = sorted({port["device"] for port in context.survey["ports"]})
    if context.malformed_devices:
        return _none("rdma_devices", context)
    if not kernel and not library:
        status = FAIL if context.fabric == "verbs" else SKIP
        why = context.survey["error"]
        return Result("rdma_devices", status, "no RDMA device on this host", why, fixes.DEVICE)
    if kernel and not nodes:
        why = f"the kernel has {', '.join(kernel)}, but there is no {NODES}/uverbs*: "
        why += "the module ib_uverbs is not loaded, or this container has no RDMA devices"
        return Result("rdma_devices", FAIL, f"{NODES} is missing", why, fixes.NODES)
    closed = [name for name in nodes if not _may_use(context, name)]
    if closed:
        what = ", ".join(f"{NODES}/{name}" for name in closed)
        why = f"user {os.geteuid()} has no read and write permission"
        return Result("rdma_devices", FAIL, f"no access to {what}", why, fixes.NODES)
    if not library:
        why = "libibverbs finds none of these devices: their drivers are missing"
        return Result("rdma_devices", FAIL, ", ".join(kernel), why, fixes.LIBRARY)
    return Result("rdma_devices", PASS, ", ".join(library))


def _may_use(context: Context, node: str) -> bool:
    path = context.system.root / NODES.lstrip("/") / node
    return os.access(path, os.R_OK | os.W_OK)


def _none(name: str, context: Context) -> Result:
    """The result of a check that has no port to examine."""
    what = "no usable port" if context.has_hardware else "no RDMA device on this host"
    if context.malformed_devices:
        what = "not checked: RDMA_TRANSPORT_DEVICES is malformed"
    return Result(name, SKIP, what)


def _reasons(ports: list[dict[str, Any]]) -> str:
    return "; ".join(f"{port['name']}: {port['reason']}" for port in ports if port["reason"])


def check_port(context: Context) -> Result:
    """A port is up and usable. Reports why other ports are not used."""
    ports: list[dict[str, Any]] = context.survey["ports"]
    if not ports:
        return _none("rdma_port", context)
    active = [port for port in ports if port["active"]]
    if not active:
        why = f"the verbs fabric is not available: {context.without_verbs}"
        return Result("rdma_port", _unusable(context), _reasons(ports), why, _fix_port(ports))
    used = [port for port in ports if port["chosen"]] or active[:1]
    found = ", ".join(f"{one['name']} is {one['state']} ({one['link_layer']})" for one in used)
    others = _reasons([port for port in ports if port not in used])
    found += f"; not used: {others}" if others else ""
    named = {port["name"] for port in ports}
    missing = [line for line in context.survey["left_out"] if line.partition(": ")[0] not in named]
    if missing:
        why = "; ".join(missing)
        return Result("rdma_port", WARN, found, why, setting("DEVICES", ",".join(sorted(named))))
    return Result("rdma_port", PASS, found)


def _unusable(context: Context) -> str:
    """SKIP if the card is one for libfabric, such as EFA, and libfabric uses it; otherwise FAIL."""
    with_rc = [each for each in context.survey["ports"] if "(RC)" not in each["reason"]]
    served = any(offer["card"] for offer in context.providers)
    return SKIP if served and not with_rc and context.fabric == "auto" else FAIL


def _fix_port(ports: list[dict[str, Any]]) -> dict[str, str]:
    reasons = _reasons(ports)
    if "RDMA_TRANSPORT_DEVICES" in reasons:
        return setting("DEVICES", ",".join(port["name"] for port in ports))
    return fixes.NODES if "/dev/infiniband" in reasons else fixes.PORT


def check_gid(context: Context) -> Result:
    """The port has an address that peers can reach."""
    port = context.port
    if port is None:
        return _without_gid(context)
    if port["link_layer"] == "InfiniBand":
        return Result("gid", PASS, f"LID {port['lid']} (InfiniBand addresses ports by LID)")
    gid = next(each for each in port["gids"] if each["index"] == port["used_gid"])
    found = f"index {gid['index']}: {gid['type']}, {gid['address']}"
    if gid["address"].lower().startswith("fe80"):
        why = "a link-local address reaches only hosts on the same Ethernet segment"
        return Result("gid", WARN, found, why, fixes.NETWORK)
    if gid["type"] == "RoCE v1":
        why = "RoCE v1 is not routable: it reaches only hosts on the same Ethernet segment"
        return Result("gid", WARN, found, why, fixes.NETWORK)
    return Result("gid", PASS, found)


def _without_gid(context: Context) -> Result:
    """No port is used: because of a GID or a partition key, or for a reason of another check."""
    active = [port for port in context.survey["ports"] if port["active"]]
    for name, usual in (("GID_INDEX", "auto"), ("GID_RANGE", ""), ("PKEY", "auto")):
        wrong = [port for port in active if f"RDMA_TRANSPORT_{name}" in port["reason"]]
        if wrong:
            why = "the setting names an entry that the port's table does not have"
            return Result("gid", FAIL, _reasons(wrong), why, setting(name, usual))
    bare = [port for port in active if "GID" in port["reason"]]
    if not bare:
        return _none("gid", context)
    why = "GIDs come from the IP addresses of the port's interface in this network namespace"
    return Result("gid", FAIL, _reasons(bare), why, fixes.NETWORK)


def check_mtu(context: Context) -> Result:
    """The MTU is large enough, and at least what the settings request."""
    port = context.port
    if port is None:
        return _none("mtu", context)
    found = f"{port['used_mtu']} bytes per packet; active {port['mtu']}, maximum {port['max_mtu']}"
    jumbo = {"shell": "ip link set dev eth0 mtu 9000    # on the port's interface and all switches"}
    asked = context.environment.value("MTU")
    if asked.isdigit() and int(asked) > port["mtu"]:
        why = f"RDMA_TRANSPORT_MTU={asked} is larger than the active MTU of the port"
        return Result("mtu", WARN, found, why, jumbo)
    if port["mtu"] < _RECOMMENDED_MTU:
        why = "small packets cost bandwidth: the MTU of the interface is below 1500"
        return Result("mtu", WARN, found, why, jumbo)
    return Result("mtu", PASS, found)


def check_memlock(context: Context) -> Result:
    """The memlock limit is enough for the fabric, or for the plan."""
    limit: int | None = context.survey["memlock"]["limit"]
    ring: int = context.survey["memlock"]["ring"]
    least: int = context.survey["memlock"]["begin"]
    whose = f"a server needs {format_bytes(least)} to start"
    if context.need:
        least = max(least, context.need.locked(ring))
        whose = f"the plan needs {format_bytes(least)} for {context.need.task}"
    found = f"{'no limit' if limit is None else format_bytes(limit)}; {whose}"
    fix = fixes.from_help(context.survey["memlock"]["help"])
    if limit is None:
        return Result("memlock", PASS, found)
    if not context.has_hardware and context.fabric != "verbs":
        return Result("memlock", SKIP, f"{found}; not needed without an RDMA device")
    if limit < least:
        why = "the card pins the memory that it reads and writes (RLIMIT_MEMLOCK)"
        return Result("memlock", FAIL, found, why, fix)
    why = (
        "the arena holds all large tensors of the task, not only those sent, and may be pinned "
        f"entirely: up to {format_bytes(context.arena_limit)} (RDMA_TRANSPORT_ARENA_SIZE)"
    )
    return Result("memlock", WARN, found, why, fix)


def check_fork(context: Context) -> Result:
    """A fork (subprocess, multiprocessing) cannot move pages that the card uses."""
    state = context.survey["library"].get("fork")
    if state is None or not context.has_hardware:
        return _none("fork", context)
    kernel = re.match(r"(\d+)\.(\d+)", platform.release())
    recent = kernel is not None and (int(kernel[1]), int(kernel[2])) >= COPIES_AT_FORK
    if state == "unneeded" or (state == "unknown" and recent):
        return Result("fork", PASS, "safe: this kernel copies pinned pages for the child")
    if state == "enabled":
        return Result("fork", PASS, "safe: libibverbs hides pinned pages from the child")
    why = "after a fork the queues of libibverbs may be in pages that the card does not access"
    return Result("fork", WARN, f"libibverbs reports: {state}", why, fixes.FORK)


def check_loopback(context: Context) -> Result:
    """The port transfers bytes from this process to itself."""
    if context.port is None:
        return _none("verbs_transfer", context)
    return check_transfer("verbs", {"shell": "dmesg | tail -20; ibv_devinfo -v"})


CHECKS = (
    *(check_library, check_devices, check_port, check_gid, check_mtu, check_memlock, check_fork),
    check_loopback,
)
