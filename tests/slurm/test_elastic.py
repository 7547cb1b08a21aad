"""Elastic jobs on nodes of Slurm."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.slurm.cluster import Slurm
from tests.support import elastic_member
from tests.support.deadlines import eventually
from tests.support.launchers import SETTINGS, member

pytestmark = pytest.mark.timeout(240, func_only=True)


def test_a_node_that_is_lost_costs_a_step(slurm: Slurm, tmp_path: Path) -> None:
    output = tmp_path / "output"
    command = ("rdma-transport", "run", "--elastic", "-n", "2", "--", *member(40, 2))
    words = ("srun", "--no-kill", "--nodes=2", "--ntasks-per-node=1", f"--output={output}")
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(slurm.run, *words, *command, settings=SETTINGS, seconds=120)
        assert eventually(lambda: output.exists() and " step 10 " in output.read_text(), 60)
        for pid, line in slurm.processes()["n2"].items():
            if " run --elastic " in line:  # the ranks end with it
                os.kill(pid, signal.SIGKILL)
        ran = job.result()
    printed = output.read_text()
    assert ran.returncode == 128 + signal.SIGKILL, ran.stderr + printed
    assert re.search(r"host [\d.]+ is lost, with ranks 2 and 3; the others go on\n", printed)
    assert len(re.findall(r"^\[[01]\] begins [01]/2 after [1-9]", printed, re.M)) == 2
    assert printed.count("] done ") == 2
    oracle = elastic_member.expected(1000)
    for step, bits in re.findall(r" step (\d+) (\w{64})$", printed, re.M):
        assert bits == oracle[int(step) - 1]


def test_two_launchers_on_a_node_are_refused(slurm: Slurm) -> None:
    ran = slurm.run("srun", "--nodes=1", "--ntasks=2", "rdma-transport", "run", "--elastic", "true")
    assert ran.returncode == 2
    assert "use srun --ntasks-per-node=1" in " ".join(ran.stderr.split())
