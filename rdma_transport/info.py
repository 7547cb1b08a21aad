"""The command ``rdma-transport info``: versions, fabrics, RDMA devices and running servers."""

import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from rdma_transport.command_line import AsJson, print_json

VERSION = 1
SYSFS = "/sys/class/infiniband"


def info(
    fabrics: Annotated[
        bool, typer.Option("--fabrics/--no-fabrics", help="Open each fabric to test it.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Show versions, fabrics, RDMA devices and running servers.

    Lists each device with its ports and GIDs, and the servers of this user.
    """
    found = gather(fabrics)
    if as_json:
        print_json(found)
    else:
        _show(found)


def gather(open_fabrics: bool = True) -> dict[str, Any]:
    """Return the document that ``info --json`` prints; see ``schemas/info.json``."""
    from rdma_transport import _native, live
    from rdma_transport.fabric import FABRICS
    from rdma_transport.settings import silence

    silence()
    survey = json.loads(_native.survey_json())
    libfabric = json.loads(_native.libfabric_survey_json())
    return {
        "version": VERSION,
        "versions": versions(survey, libfabric),
        "fabrics": [_fabric(*each) for each in FABRICS.items()] if open_fabrics else [],
        "library": survey["library"],
        "devices": devices(survey),
        "libfabric": libfabric,
        "servers": [{"pid": one.pid, "user": one.user} for one in live.servers()],
    }


def versions(survey: dict[str, Any], libfabric: dict[str, Any]) -> dict[str, str]:
    """Return the installed versions and those the plugin was built for; ``none`` if missing."""
    import rdma_transport
    from rdma_transport import _native, wheels

    file = survey["library"].get("file", "")
    other = libfabric["library"]
    return {
        "rdma_transport": rdma_transport.__version__,
        "protocol": str(_native.PROTOCOL_VERSION),
        "built for TensorFlow": _native.TENSORFLOW_VERSION,
        "TensorFlow": ", ".join(map(" ".join, wheels.installed())) or "none",
        "Python": f"{platform.python_version()} ({sys.executable})",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libibverbs": os.path.realpath(file) if file else "none",
        "libfabric": f"{other['version']} ({os.path.realpath(other['file'])})"
        if other.get("file")
        else "none",
    }


def _fabric(name: str, description: str) -> dict[str, Any]:
    """Open the fabric; return its summary, or why it is not available."""
    from rdma_transport.fabric import Device, FabricError

    found = {"name": name, "description": description}
    try:
        with Device.open(name) as device:
            return found | {"available": True, "about": device.summary}
    except FabricError as error:
        about = str(error).removeprefix(f"RDMA_TRANSPORT_FABRIC={name}: ")
        return found | {"available": False, "about": about}


def devices(survey: dict[str, Any], root: Path = Path("/")) -> list[dict[str, Any]]:
    """Return each RDMA device that the kernel or libibverbs reports, with its ports."""
    from rdma_transport.doctor.system import System

    system = System(root)
    named = {port["device"] for port in survey["ports"]} | set(system.names(SYSFS))
    return [
        {
            "name": name,
            "firmware": system.text(f"{SYSFS}/{name}/fw_ver"),
            "board": system.text(f"{SYSFS}/{name}/board_id"),
            "ports": [_port(system, port) for port in survey["ports"] if port["device"] == name],
        }
        for name in sorted(named)
    ]


def _port(system: Any, port: dict[str, Any]) -> dict[str, Any]:
    directory = f"{SYSFS}/{port['device']}/ports/{port['port']}"
    rate = system.text(f"{directory}/rate")
    interfaces = {
        text
        for index in system.names(f"{directory}/gid_attrs/ndevs")
        if (text := system.text(f"{directory}/gid_attrs/ndevs/{index}"))
    }
    return port | {"rate": rate, "interfaces": sorted(interfaces)}


def _show(found: dict[str, Any]) -> None:
    from rdma_transport.tables import make_console

    say = make_console().print
    width = max(len(name) for name in found["versions"])
    for name, version in found["versions"].items():
        say(f"{name:<{width}}  {version}")
    for fabric in found["fabrics"]:
        state = "available" if fabric["available"] else "not available"
        name = f"{fabric['name']} ({fabric['description']})"
        say(f"\nfabric {name}: {state}: {fabric['about']}")
    if not found["devices"]:
        say("\nno RDMA device on this host")
    for device in found["devices"]:
        about = " ".join(part for part in (device["board"], device["firmware"]) if part)
        say(f"\ndevice {device['name']}" + (f" ({about})" if about else ""))
        for port in device["ports"]:
            _show_port(port, say)
    _show_libfabric(found["libfabric"], say)
    for server in found["servers"]:
        say(f"\nserver: process {server['pid']} of user {server['user']}")
    if not found["servers"]:
        say("\nno server with protocol='rdma' of this user runs on this host")


def _show_libfabric(survey: dict[str, Any], say: Callable[..., None]) -> None:
    from rdma_transport.doctor.libfabric import others, place

    used = [offer for offer in survey["offers"] if offer["chosen"]]
    for offer in used + others(survey):
        use = "used by tasks" if offer["chosen"] else "not used"
        say(f"\nlibfabric {place(offer)}: {use}: {offer['reason']}")


def _show_port(port: dict[str, Any], say: Callable[..., None]) -> None:
    from rdma_transport.tables import indented

    words = [str(port[key]) for key in ("link_layer", "state", "rate") if port.get(key)]
    words += [f"MTU {port['mtu']}"] if "mtu" in port else []
    words += port["interfaces"]
    use = "used by tasks" if port["chosen"] else f"not used: {port['reason']}"
    say(indented(f"port {port['name']}: {', '.join([*words, use])}", 2))
    for gid in port.get("gids", []):
        used = "  <- used" if gid["index"] == port.get("used_gid") else ""
        say(indented(f"GID {gid['index']}: {gid['type']}, {gid['address']}{used}", 4))
