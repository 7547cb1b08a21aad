"""Ranks that Slurm starts on several nodes."""

import re

import pytest

from tests.slurm.cluster import Slurm
from tests.support.command import ROOT

pytestmark = pytest.mark.timeout(240, func_only=True)
SECONDS = 100
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


def test_ranks_of_a_program_for_horovod(slurm: Slurm) -> None:
    script = ROOT / "examples" / "horovod" / "gradient_tape.py"
    command = ("rdma-transport", "run", "--horovod", "--", "python", script)
    losses = []
    for tasks in (TASKS, ("--ntasks=1",)):
        words = (*command[:3], "-n", "1", *command[3:]) if len(tasks) == 1 else command
        ran = slurm.run("srun", *tasks, *words, seconds=SECONDS)
        assert ran.returncode == 0, ran.stderr
        losses += re.findall(r"^\[0\] loss [\d.]+ -> ([\d.]+)$", ran.stdout, re.M)
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-3)


def test_a_task_that_trains_alone_fails_the_step(slurm: Slurm) -> None:
    ran = slurm.run("srun", *TASKS, "rdma-transport", "run", "--horovod", "true")
    assert ran.returncode == 1
    assert ran.stderr.count("ended without having called init() of Horovod") == 4, ran.stderr
