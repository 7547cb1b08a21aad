"""Fixtures: one Slurm cluster for all tests, and what they must leave as they found it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import COMPUTE, Slurm
from tests.slurm.nodes import UnavailableError
from tests.support.deadlines import eventually

ENDS_SECONDS = 30


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    interfaces = set(socket.if_nameindex())
    mounts = Path("/proc/mounts").read_text()
    try:
        made = Slurm(tmp_path_factory.mktemp("slurm"))
    except UnavailableError as error:
        pytest.skip(str(error))
    yield made
    made.end()
    assert set(socket.if_nameindex()) == interfaces
    assert Path("/proc/mounts").read_text() == mounts


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """The cluster, all of whose nodes are idle before a test, and have no processes after it."""
    assert cluster.states() == dict.fromkeys(COMPUTE, "idle")
    yield cluster
    cluster.run("scancel", "--user=root")
    left = eventually(lambda: not any(cluster.processes().values()), ENDS_SECONDS)
    assert left, cluster.processes()
    idle = dict.fromkeys(COMPUTE, "idle")
    assert eventually(lambda: cluster.states() == idle, ENDS_SECONDS), cluster.states()
