"""`rdma-transport info` and `config`: what they show, and what they say is wrong."""

import importlib
import os
import resource
import subprocess
import sys
from importlib.metadata import version

import pytest

import rdma_transport
from rdma_transport import info
from rdma_transport.doctor.system import System
from tests.support import fake_verbs
from tests.support.command import clean_environment, run, run_in_terminal, valid, words
from tests.support.faulty_libfabric import ABSENT

pytestmark = pytest.mark.timeout(60)

ALONE = {"RDMA_TRANSPORT_LIBIBVERBS": "/nowhere/libibverbs.so.1"} | ABSENT


def test_the_version() -> None:
    ran = run("--version")
    assert (ran.returncode, ran.stdout) == (0, f"rdma_transport {version('rdma_transport')}\n")


def test_config_shows_every_setting() -> None:
    ran = run("config", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    shown = valid(ran.stdout, "config")
    assert [row["name"] for row in shown["settings"]] == [
        setting.name for setting in rdma_transport.settings()
    ]
    table = run("config").stdout
    assert all(row["name"] in table for row in shown["settings"])


def test_config_tells_what_the_environment_sets() -> None:
    ran = run("config", "--changed", "--json", settings={"RDMA_TRANSPORT_SPIN": "7us"})
    (row,) = valid(ran.stdout, "config")["settings"]
    assert (row["name"], row["source"]) == ("RDMA_TRANSPORT_SPIN", "environment")
    assert (row["value"], row["default"]) == ("7us", "50us")
    one = run("config", "spin", settings={"RDMA_TRANSPORT_SPIN": "7us"}).stdout
    assert one.startswith(
        "RDMA_TRANSPORT_SPIN = 7us  (environment; duration; default 50us)\n    how"
    )
    plain = run("config", "RDMA_TRANSPORT_SPIN").stdout
    assert plain.startswith("RDMA_TRANSPORT_SPIN = 50us  (default; duration)\n    how")


@pytest.mark.parametrize(
    ("settings", "arguments", "sentence"),
    [
        ({"RDMA_TRANSPORT_ARENA_SIZE": "lots"}, [], "RDMA_TRANSPORT_ARENA_SIZE: 'lots' is not"),
        ({"RDMA_TRANSPORT_FABRICK": "shm"}, [], "did you mean RDMA_TRANSPORT_FABRIC?"),
        ({}, ["SPIM"], "did you mean RDMA_TRANSPORT_SPIN?"),
    ],
)
def test_config_ends_with_2_where_something_is_wrong(
    settings: dict[str, str], arguments: list[str], sentence: str
) -> None:
    ran = run("config", *arguments, settings=settings)
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: ")
    assert sentence in ran.stderr
    if not arguments:
        assert "RDMA_TRANSPORT_SPIN" in ran.stdout
        document = valid(run("config", "--json", settings=settings).stdout, "config")
        assert sentence in document["error"] + "".join(document["warnings"])


def test_info_on_a_host_without_a_card() -> None:
    ran = run("info", "--json", settings=ALONE)
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
    shown = run("info", settings=ALONE).stdout
    assert "fabric verbs (RDMA through libibverbs): not available: cannot load" in shown


def test_info_shows_ports_and_gids() -> None:
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


@pytest.mark.parametrize("command", ["info", "config"])
def test_in_a_terminal_and_without_a_reader(command: str) -> None:
    code, shown = run_in_terminal(command, settings=ALONE)
    assert code == 0
    assert "Traceback" not in shown
    assert "shm" in shown
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        ran = subprocess.run(
            words(command),
            env=clean_environment(ALONE),
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ran.stderr == ""


@pytest.mark.parametrize(
    "arguments", [["config"], ["info"], ["doctor", "--quick"], ["doctor", "-h"]]
)
def test_no_command_imports_tensorflow_and_each_starts_at_once(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['x', *{arguments!r}]; from rdma_transport.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'tensorflow', 'keras', 'numpy', 'grpc', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy; print('light')"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(ALONE), capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ran.stdout.endswith("light\n"), ran.stderr
    # Processor time, because others use this machine too.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5


def test_the_package_has_the_schemas_where_they_are_looked_for() -> None:
    files = importlib.import_module("importlib.resources").files("rdma_transport") / "schemas"
    assert sorted(each.name for each in files.iterdir()) == [
        "config.json",
        "doctor.json",
        "info.json",
    ]
