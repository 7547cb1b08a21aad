"""The interface as a type checker sees it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parents[2]
TYPED = """
import numpy as np
import rdma_transport
from rdma_transport.collectives import Communicator
from rdma_transport.fabric import Device

sent: int = rdma_transport.stats()["sent"]["static"]["bytes"]
for peer in rdma_transport.stats()["peers"]:
    since: float | None = peer["linked_at"]
for edge in rdma_transport.stats()["plan"]["edges"]:
    print(edge["name"].upper(), edge["shape"][0] + 1)
with Device.open() as device, device.open_channel() as channel:
    array = np.frombuffer(device.allocate(8), np.float32)
    channel.notify(b"text")

def reduce(world: Communicator, array: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    world.start_all_reduce(array, out=array).wait()
    world.all_reduce(memoryview(b"123"), "mean", out=bytearray(3))
    world.exchange([array, b""], [array, bytearray()])
"""
WRONG = """
import rdma_transport
from rdma_transport.collectives import Communicator
from rdma_transport.fabric import Device

rdma_transport.stats()["sent"]["static"]["byte"]
rdma_transport.stats()["peers"][0]["linked_at"] + 1
Device.open().open_channel().notify("text")

def reduce(world: Communicator) -> None:
    world.start_all_reduce("oops")
    world.scatter(None, 7)
"""


def test_a_type_checker_knows_the_interface(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(TYPED)
    (tmp_path / "wrong.py").write_text(WRONG)
    words = ["-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "right.py", "wrong.py"]
    words += ["--python-version", "3.12"]  # the first whose NumPy takes all buffers
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    found = [line.split(":")[:2] for line in ran.stdout.splitlines() if ": error: " in line]
    assert found == [["wrong.py", line] for line in ("6", "7", "8", "11", "12")], (
        ran.stdout + ran.stderr
    )
