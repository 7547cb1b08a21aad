"""The commands of docs/tuning.md, run as they are written there, on a job."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.support.cluster import Cluster
from tests.support.observing import job, run

pytestmark = pytest.mark.timeout(60)
PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"
COMMANDS = re.findall(r"^rdma-transport ([^#\n]*[^# \n])", PAGE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster({"a": 1, "b": 1}) as made, job(made):
        yield made


@pytest.mark.parametrize("command", COMMANDS)
def test_it_works(
    cluster: Cluster, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*shlex.split(command))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout or os.listdir(tmp_path)


def test_there_are_some() -> None:
    assert len(COMMANDS) == 5
