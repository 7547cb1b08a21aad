"""Checks of libfabric: library, provider and interface, endpoint, ports, transfer."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rdma_transport.doctor import fixes
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result, setting
from rdma_transport.doctor.transfer import check_transfer
from rdma_transport.fabric import Device, FabricError

_LARGEST_PORT = 65535


def check_library(context: Context) -> Result:
    """libfabric can be loaded and is recent enough."""
    name = "libfabric_library"
    library = context.libfabric["library"]
    if not library["error"]:
        return Result(name, PASS, f"{library['version']}, {os.path.realpath(library['file'])}")
    why = "without it, tensors to hosts that verbs does not reach fall back to gRPC"
    status = FAIL if context.fabric == "libfabric" else SKIP
    return Result(name, status, library["error"].split("; ")[0], why, fixes.LIBFABRIC)


def check_provider(context: Context) -> Result:
    """A provider of libfabric reaches other hosts. Reports what else there is, and why it waits."""
    name = "libfabric_provider"
    if context.libfabric["library"]["error"]:
        return _without_library(name)
    if context.malformed_libfabric:
        malformed = context.malformed_libfabric.partition("=")[0]
        return Result(name, SKIP, f"not checked: {malformed} is malformed")
    fix = {"shell": "fi_info -t FI_EP_RDM    # Debian: libfabric-bin; RHEL: libfabric"}
    if not context.providers:
        found = context.libfabric["error"]
        why = "libfabric is not used: tensors to hosts that verbs does not reach fall back to gRPC"
        status = FAIL if _is_requested(context) else SKIP
        return Result(name, status, found, why, _fix_setting(context) or fix)
    found = "; ".join(f"{place(offer)}: {offer['reason']}" for offer in context.providers)
    unused = others(context.libfabric)
    lines = [f"not used: {place(offer)}: {offer['reason']}" for offer in unused]
    text = "\n".join([found, *lines])
    if all(offer["interface"] == "lo" for offer in context.providers):
        why = "the loopback interface does not reach other hosts"
        return Result(name, WARN, text, why, setting("LIBFABRIC_INTERFACE", "eth0"))
    return Result(name, PASS, text)


def _is_requested(context: Context) -> bool:
    """Whether the settings name the fabric, a provider or an interface of it."""
    error = context.libfabric["error"]
    names = re.search(r"RDMA_TRANSPORT_LIBFABRIC_(INTERFACE=|PROVIDER=[^^])", error)
    return context.fabric == "libfabric" or names is not None


def _without_library(name: str) -> Result:
    return Result(name, SKIP, "libfabric cannot be loaded")


def place(offer: dict[str, Any]) -> str:
    """Return provider, interface and address, for users."""
    where = f"{offer['provider']} on {offer['interface'] or 'an unnamed interface'}"
    return f"{where} ({offer['address']})" if offer["address"] else where


def others(survey: dict[str, Any]) -> list[dict[str, Any]]:
    """Return other interfaces that tasks could use, and other providers of cards, once each."""
    seen = {
        (offer["provider"], offer["interface"]) for offer in survey["offers"] if offer["chosen"]
    }
    found = []
    for offer in survey["offers"]:
        both = (offer["provider"], offer["interface"])
        common = offer["card"] or offer["provider"] == "tcp"
        if common and offer["interface"] != "lo" and both not in seen:
            seen.add(both)
            found.append(offer)
    return found


def _fix_setting(context: Context) -> dict[str, str]:
    """Return the lines that name an interface or a provider that this host has."""
    usable = others(context.libfabric)
    if not usable:
        return {}
    if all("LIBFABRIC_PROVIDER" in offer["reason"] for offer in usable):
        return setting("LIBFABRIC_PROVIDER", usable[0]["provider"])
    if any("LIBFABRIC_INTERFACE" in offer["reason"] for offer in usable):
        return setting("LIBFABRIC_INTERFACE", usable[0]["interface"])
    return {}


def check_endpoint(context: Context) -> Result:
    """The endpoints open; reports the addresses on which they listen."""
    name = "libfabric_endpoint"
    if not context.providers:
        return _none(name, context)
    fix = {"shell": f"FI_LOG_LEVEL=info fi_info -p {_full_name(context)} -t FI_EP_RDM"}
    try:
        with Device.open("libfabric") as device:
            opened = device.summary
    except FabricError as error:
        found = str(error).removeprefix("RDMA_TRANSPORT_FABRIC=libfabric: ").split("\n")[0]
        why = "the provider offers an endpoint and cannot open it"
        if "Cannot assign requested address" in found:
            why = "no port is free in the range that the environment gives, or the address is gone"
            fix = fix_reach(context)
        return Result(name, FAIL, found, why, fix)
    missing = [
        offer["provider"] for offer in context.providers if f"by {offer['provider']} " not in opened
    ]
    if missing:
        why = f"{', '.join(missing)} cannot be opened; the log of a task has the reason"
        return Result(name, WARN, opened, why, fix)
    return Result(name, PASS, opened)


def _none(name: str, context: Context) -> Result:
    """The result of a check that has no provider to examine."""
    if context.libfabric["library"]["error"]:
        return _without_library(name)
    return Result(name, SKIP, "no provider is used")


def _full_name(context: Context) -> str:
    return str(context.providers[-1]["full_name"]).partition(";")[0]


@dataclass(frozen=True)
class PortRange:
    """The variables that limit the ports of libfabric's TCP provider, and their values."""

    low_name: str
    high_name: str
    low: str
    high: str

    @property
    def valid(self) -> bool:
        """Whether the provider accepts the range; otherwise it ignores both values."""
        numbers = (self.low, self.high)
        if not all(re.fullmatch("[0-9]+", number) for number in numbers):
            return False
        return 0 < int(self.low) <= int(self.high) <= _LARGEST_PORT


def port_range(full_name: str) -> PortRange:
    """Return the range for a provider by the library's name: variables start with FI_NAME_."""
    prefix = f"FI_{full_name.partition(';')[0].upper()}_PORT_"
    low, high = f"{prefix}LOW_RANGE", f"{prefix}HIGH_RANGE"
    return PortRange(low, high, os.environ.get(low, ""), os.environ.get(high, ""))


def check_ports(context: Context) -> Result:
    """The TCP ports on which tasks listen, which a firewall must let pass."""
    name = "libfabric_ports"
    by_tcp = [offer for offer in context.providers if offer["provider"].startswith("tcp")]
    if not by_tcp:
        return _none(name, context) if not context.providers else Result(name, SKIP, "not TCP")
    ports = port_range(by_tcp[0]["full_name"])
    where = by_tcp[0]["address"] or by_tcp[0]["interface"]
    names = f"{ports.low_name} and {ports.high_name}"
    fix = fixes.ports(ports.low_name, ports.high_name)
    if ports.valid:
        count = int(ports.high) - int(ports.low) + 1
        found = f"each task listens on one port of {where}: {ports.low} to {ports.high}"
        return Result(name, PASS, f"{found} ({names}), enough for {count} tasks")
    if ports.low or ports.high:
        found = f"{ports.low_name}={ports.low}, {ports.high_name}={ports.high}"
        why = "libfabric ignores the range unless both are set, and 0 < low <= high <= 65535"
        return Result(name, WARN, found, why, fix)
    other = port_range("tcp" if by_tcp[0]["full_name"].startswith("net") else "net")
    if other.low or other.high:
        found = f"{other.low_name} is set, but this version of libfabric reads {names}"
        why = "the range has no effect: the kernel chooses the ports"
        return Result(name, WARN, found, why, fix)
    found = f"each task listens on one port of {where}, which the kernel chooses"
    return Result(name, PASS, f"{found}\nbehind a firewall, set {names} on all tasks")


def fix_reach(context: Context) -> dict[str, str]:
    """Return the lines for a peer whose endpoint does not answer: mostly a firewall."""
    by_tcp = [offer for offer in context.providers if offer["provider"].startswith("tcp")]
    if not by_tcp:
        return fixes.COMPARE
    ports = port_range(by_tcp[0]["full_name"])
    return fixes.ports(ports.low_name, ports.high_name)


def check_loopback(context: Context) -> Result:
    """The provider transfers bytes from this process to itself."""
    if not context.providers:
        return _none("libfabric_transfer", context)
    fix = {
        "shell": f"fi_pingpong -p {_full_name(context)} -e rdm    # and with this host's address"
    }
    return check_transfer("libfabric", fix)


def checks(context: Context) -> tuple[Callable[[Context], Result], ...]:
    """Return the checks of this family: one if there is no library and nothing requires it."""
    if context.libfabric["library"]["error"] and context.fabric != "libfabric":
        return (check_library,)
    return (check_library, check_provider, check_endpoint, check_ports, check_loopback)
