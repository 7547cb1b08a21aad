"""The doctor's checks of GPUDirect RDMA, on hosts that are made of files."""

import platform
from pathlib import Path

import pytest

from rdma_transport.doctor import gpu_direct
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN, Result
from rdma_transport.doctor.system import System

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10"
SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"
GPU, CARD = "0000:03:00.0", "0000:04:00.0"


def device(root: Path, link: str, where: str, **files: str) -> None:
    """A PCI device at `where` below /sys/devices, and a link to it."""
    there = root / "sys/devices" / where
    there.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (there / name).write_text(text + "\n")
    at = root / link.lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(there)


def add_gpu(root: Path, where: str, numa: str = "0") -> None:
    files = {"vendor": "0x10de", "class": "0x030200", "numa_node": numa}
    device(root, f"/sys/bus/pci/devices/{where.rsplit('/', 1)[-1]}", where, **files)


def add_card(root: Path, where: str, numa: str = "0") -> None:
    device(root, "/sys/class/infiniband/mlx5_0/device", where, numa_node=numa)


def context(root: Path, *, card: bool = True) -> Context:
    made = Context(system=System(root))
    ports = [{"name": "mlx5_0:1", "device": "mlx5_0", "chosen": True}] if card else []
    made.__dict__["survey"] = {"ports": ports}
    return made


def checked(root: Path, version: str = OPEN, *, card: bool = True) -> Result:
    driver = root / "proc/driver/nvidia/version"
    driver.parent.mkdir(parents=True, exist_ok=True)
    driver.write_text(version + "\n")
    return gpu_direct.check_driver(context(root, card=card))


@pytest.fixture(autouse=True)
def recent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: "6.8.0")


@pytest.mark.parametrize(
    ("version", "release", "status", "sentence"),
    [
        (OPEN, "6.8.0", PASS, "1 GPUs"),
        (CLOSED, "6.8.0", WARN, "open"),
        (OPEN, "5.10.0-amd64", WARN, "5.12"),
        ("", "6.8.0", WARN, "not loaded"),
    ],
)
def test_the_driver_and_the_kernel_must_export_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    version: str, release: str, status: str, sentence: str,
) -> None:  # fmt: skip
    add_gpu(tmp_path, f"{SWITCH}/{GPU}")
    monkeypatch.setattr(platform, "release", lambda: release)
    result = checked(tmp_path, version)
    assert result.status == status
    assert sentence in result.found
    assert bool(result.fix) == (status != PASS)
    monkeypatch.setenv("RDMA_TRANSPORT_GPU_DIRECT", "on")
    assert checked(tmp_path, version).status == (PASS if status == PASS else FAIL)
    monkeypatch.setenv("RDMA_TRANSPORT_GPU_DIRECT", "off")
    assert checked(tmp_path, version).status == SKIP


@pytest.mark.parametrize(("version", "release"), [(CLOSED, "6.8.0"), (OPEN, "5.10.0-amd64")])
@pytest.mark.parametrize("module", ["nvidia_peermem", "nv_peer_mem"])
def test_a_module_of_the_kernel_finds_memory_without_dma_buf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, release: str, module: str
) -> None:
    add_gpu(tmp_path, f"{SWITCH}/{GPU}")
    monkeypatch.setattr(platform, "release", lambda: release)
    (tmp_path / "sys/module" / module).mkdir(parents=True)
    result = checked(tmp_path, version)
    assert (result.status, result.fix) == (PASS, {})
    assert module in result.found


def test_nothing_is_checked_without_a_gpu_or_a_card(tmp_path: Path) -> None:
    display = {"vendor": "0x1a03", "class": "0x030000"}
    device(tmp_path, "/sys/bus/pci/devices/0000:05:00.0", f"{SWITCH}/0000:05:00.0", **display)
    assert checked(tmp_path).found == "no NVIDIA GPU on this host"
    assert gpu_direct.check_topology(context(tmp_path)).status == SKIP
    add_gpu(tmp_path, f"{SWITCH}/{GPU}")
    assert checked(tmp_path, card=False).status == SKIP
    assert gpu_direct.check_topology(context(tmp_path, card=False)).status == SKIP


@pytest.mark.parametrize(
    ("card", "numa", "distance", "status"),
    [
        (f"{SWITCH}/0000:02:01.0/{CARD}", "0", "switch", PASS),
        (f"pci0000:00/0000:00:02.0/{CARD}", "0", "host bridge", PASS),
        (f"pci0000:40/0000:40:01.0/{CARD}", "0", "socket", WARN),
        (f"pci0000:80/0000:80:01.0/{CARD}", "1", "system", WARN),
    ],
)
def test_how_far_a_card_is_from_a_gpu(
    tmp_path: Path, card: str, numa: str, distance: str, status: str
) -> None:
    add_gpu(tmp_path, f"{SWITCH}/0000:02:00.0/{GPU}")
    add_card(tmp_path, card, numa)
    result = gpu_direct.check_topology(context(tmp_path))
    assert result.status == status
    assert result.found == f"from mlx5_0 to GPU {GPU}: {distance}"
