"""Checks of GPUDirect RDMA: whether cards can access GPUs' memory, and how far they are apart."""

import os
import platform
import re

from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result, setting
from rdma_transport.doctor.system import System

NVIDIA = "0x10de"
HAS_DMA_BUF = (5, 12)  # the first Linux whose RDMA cards can use a DMA-BUF
_PCI = "/sys/bus/pci/devices"
_FUNCTION = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DRIVER = "/proc/driver/nvidia/version"
_OPEN_MODULES = "apt-get install nvidia-open    # NVIDIA's open kernel modules, 515 or newer"
_FINDS_BY_ADDRESS = ("nvidia_peermem", "nv_peer_mem")  # modules of the kernel, the first of today
_LOAD_PEER_MEMORY = "modprobe nvidia_peermem    # needs MLNX_OFED or DOCA's drivers of the card"


def gpus(system: System) -> list[str]:
    """Return the PCI addresses of NVIDIA's GPUs."""
    return [
        address
        for address in system.names(_PCI)
        if system.text(f"{_PCI}/{address}/vendor") == NVIDIA
        and system.text(f"{_PCI}/{address}/class").startswith("0x03")
    ]


def check_driver(context: Context) -> Result:
    """Cards can use the GPUs' memory: as DMA-BUFs of the driver, or found by the kernel."""
    system = context.system
    there = gpus(system)
    if not there:
        return Result("gpu_direct", SKIP, "no NVIDIA GPU on this host")
    mode = context.environment.value("GPU_DIRECT").lower()
    if mode == "off":
        return Result("gpu_direct", SKIP, "not used: RDMA_TRANSPORT_GPU_DIRECT=off")
    if not context.has_hardware:
        return Result("gpu_direct", SKIP, "no RDMA device that could access the GPUs")
    bad = FAIL if mode == "on" else WARN
    why = "tensors of GPUs are copied into the host's memory instead"
    version = system.text(_DRIVER).partition("\n")[0]
    if not version:
        return Result("gpu_direct", bad, "the NVIDIA driver is not loaded", why,
                      {"shell": "modprobe nvidia"})  # fmt: skip
    modules = system.names("/sys/module")
    finders = [name for name in _FINDS_BY_ADDRESS if name in modules]
    driver = f"{len(there)} GPUs; {version.split(': ')[-1].strip()}"
    kernel = re.match(r"(\d+)\.(\d+)", platform.release())
    old = kernel is not None and (int(kernel[1]), int(kernel[2])) < HAS_DMA_BUF
    if not old and "Open Kernel Module" in version:
        return Result("gpu_direct", PASS, driver)
    if finders:
        return Result("gpu_direct", PASS, f"{driver}; {finders[0]}")
    if old:
        found = f"Linux {platform.release()}; DMA-BUF for RDMA needs 5.12"
        fix = _LOAD_PEER_MEMORY
    else:
        found = "the NVIDIA driver's kernel modules are not the open ones, which export DMA-BUFs"
        fix = _OPEN_MODULES
    return Result("gpu_direct", bad, f"{found}; nvidia_peermem is not loaded", why, {"shell": fix})


def distance(system: System, first: str, second: str) -> str:
    """How far two PCI devices are apart: ``switch``, ``host bridge``, ``socket`` or ``system``.

    ``first`` and ``second`` are links below /sys to the devices. Devices at one switch reach each
    other without the processor. ``socket`` is the same processor, ``system`` another one.
    """
    ends = [system.root / each.lstrip("/") for each in (first, second)]
    shared = os.path.commonprefix([end.resolve().parts for end in ends])
    if any(_FUNCTION.fullmatch(part) for part in shared):
        return "switch"
    if any(part.startswith("pci") for part in shared):
        return "host bridge"
    nodes = [system.text(f"{each}/numa_node") for each in (first, second)]
    return "socket" if nodes[0] == nodes[1] else "system"


def check_topology(context: Context) -> Result:
    """The RDMA device that tasks use is near a GPU."""
    there = gpus(context.system)
    port = context.port
    if not there or port is None:
        what = "no NVIDIA GPU on this host" if not there else "no usable port"
        return Result("gpu_topology", SKIP, what)
    card = f"/sys/class/infiniband/{port['device']}/device"
    apart = {gpu: distance(context.system, card, f"{_PCI}/{gpu}") for gpu in there}
    found = ", ".join(f"{gpu}: {how}" for gpu, how in apart.items())
    found = f"from {port['device']} to GPU {found}"
    if set(apart.values()) & {"switch", "host bridge"}:
        return Result("gpu_topology", PASS, found)
    why = "what a card reads from or writes to such a GPU crosses the processor's interconnect, "
    why += "which may be slower than copies through the host's memory: measure both"
    return Result("gpu_topology", WARN, found, why, setting("GPU_DIRECT", "off"))


CHECKS = (check_driver, check_topology)
