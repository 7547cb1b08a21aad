"""`rdma-transport info`: versions, fabrics, ports and providers."""

import os

import pytest

import rdma_transport
from rdma_transport import info
from rdma_transport.doctor.system import System
from tests.support import fake_verbs
from tests.support.command import NO_LIBRARIES, run, valid

pytestmark = pytest.mark.timeout(60)


def test_on_a_host_without_a_card() -> None:
    ran = run("info", "--json", settings=NO_LIBRARIES)
    assert (ran.returncode, ran.stderr) == (0, "")
    found = valid(ran.stdout, "info")
    assert found["versions"]["rdma_transport"] == rdma_transport.__version__
    assert found["versions"]["built for TensorFlow"].startswith("2.21")
    assert found["versions"]["libibverbs"] == "none"
    fabrics = {fabric["name"]: fabric for fabric in found["fabrics"]}
    assert fabrics["shm"]["available"]
    assert "cannot load the verbs library" in fabrics["verbs"]["about"]
    assert found["versions"]["libfabric"] == "none"
    assert "cannot load libfabric" in fabrics["libfabric"]["about"]
    assert found["libfabric"]["offers"] == []
    shown = run("info", settings=NO_LIBRARIES).stdout
    assert "fabric verbs (RDMA through libibverbs): not available: cannot load" in shown


def test_shows_ports_and_gids() -> None:
    settings = fake_verbs.environment("auto", "devices=fake_0,fake_1;fake_1.port_state=down")
    ran = run("info", "--json", settings=settings)
    assert ran.stderr == ""
    found = valid(ran.stdout, "info")
    used, down = (device["ports"][0] for device in found["devices"])
    assert (used["chosen"], used["used_gid"], used["mtu"]) == (True, 3, 1024)
    assert [gid["index"] for gid in used["gids"]] == [0, 1, 2, 3]
    assert (down["active"], down["state"]) == (False, "down")
    assert "port is DOWN" in down["reason"]
    text = run("info", settings=settings).stdout
    assert "    GID 3: RoCE v2, 10.0.0.1  <- used\n" in text
    assert "  port fake_1:1: RoCE, down, MTU 1024, not used: port is DOWN" in text


def test_what_the_kernel_adds_tolerates_holes(tmp_path: os.PathLike) -> None:
    root = System().root.__class__(tmp_path)
    ports = root / "sys/class/infiniband/mlx5_0/ports/1"
    (ports / "gid_attrs/ndevs").mkdir(parents=True)
    (ports / "gid_attrs/ndevs/0").write_text("eth2\n")
    (ports / "gid_attrs/ndevs/1").mkdir()  # reading it fails, as a hole of the table does
    (ports / "rate").write_text("100 Gb/sec (4X EDR)\n")
    (root / "sys/class/infiniband/mlx5_0/fw_ver").write_text("16.35.2000\n")
    port = {"name": "mlx5_0:1", "device": "mlx5_0", "port": 1}
    (device,) = info.devices({"ports": [port]}, root)
    assert (device["firmware"], device["ports"][0]["rate"]) == ("16.35.2000", "100 Gb/sec (4X EDR)")
    assert device["ports"][0]["interfaces"] == ["eth2"]
