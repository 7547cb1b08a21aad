"""Ranks of NumPy jobs that Slurm starts on several nodes."""

import pytest

from tests.slurm.cluster import Slurm
from tests.support.command import ROOT

pytestmark = pytest.mark.timeout(120, func_only=True)
SCRIPT = ROOT / "examples" / "all_reduce.py"
TASKS = ("--nodes=2", "--ntasks=4")
SUMS = [f"rank {rank} of 4: [10. 10. 10. 10.]" for rank in range(4)]


def test_srun_starts_ranks_on_several_nodes(slurm: Slurm) -> None:
    ran = slurm.run("srun", *TASKS, "python", SCRIPT)
    assert sorted(ran.stdout.splitlines()) == SUMS, ran.stderr


def test_each_task_is_one_rank_of_the_command(slurm: Slurm) -> None:
    command = ("rdma-transport", "run", "--", "python", SCRIPT)
    ran = slurm.run("srun", *TASKS, *command)
    assert sorted(ran.stdout.splitlines()) == SUMS, ran.stderr


def test_a_number_of_ranks_that_srun_has_given_is_an_error(slurm: Slurm) -> None:
    ran = slurm.run("srun", *TASKS, "rdma-transport", "run", "-n", "4", "true")
    assert ran.returncode == 2
    assert ran.stderr.count("omit -n 4") == 4, ran.stderr


def test_one_task_starts_ranks_of_its_own(slurm: Slurm) -> None:
    command = ("rdma-transport", "run", "-n", "4", "--", "python", SCRIPT)
    ran = slurm.run("srun", "--ntasks=1", *command)
    assert [line.partition("] ")[2] for line in sorted(ran.stdout.splitlines())] == SUMS, ran.stderr
