"""Elastic jobs: processes are killed, the others go on at once, and others take their place."""

import contextlib
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.horovod.jobs import ENVIRONMENT, SCRIPTS
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(300)
SECONDS = 1.0  # from a death to the next step of the others; one of shared memory takes a tenth


def run(
    script: str, folder: Path, *options: str, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run an elastic job that leaves nothing behind."""
    job, before = str(uuid.uuid4()), left_behind()
    command = [sys.executable, "-m", "rdma_transport", "run", "--elastic", "--horovod", *options]
    own = {"TMPDIR": str(folder), "FOLDER": str(folder), "TEST_JOB": job}
    ran = subprocess.run(
        [*command, "--", sys.executable, str(SCRIPTS / f"{script}.py")],
        env=os.environ | ENVIRONMENT | own | variables,
        capture_output=True,
        text=True,
        timeout=patient(200),
        check=False,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert not list(folder.glob("rdma_transport_*"))
    assert left_behind() <= before
    assert not processes_of(job)
    return ran


def left_behind() -> set[str]:
    return set(os.listdir("/dev/shm"))


def processes_of(job: str) -> list[str]:
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if f"TEST_JOB={job}".encode() in (each / "environ").read_bytes():
                found.append((each / "cmdline").read_text())
        except OSError:
            continue
    return found


def check_bits(output: str, least: int = 30) -> None:
    """Check that ranks had equal bits after each step, also of steps that were repeated."""
    steps: dict[tuple[str, str], set[str]] = {}
    for epochs, step, bits in re.findall(r"(\d+): step (\d+) (\w+)$", output, re.M):
        steps.setdefault((epochs, step), set()).add(bits)
    assert len(steps) >= least
    assert all(len(bits) == 1 for bits in steps.values()), steps


def seconds_to_next_step(output: str, folder: Path, slot: int) -> float:
    died = float((folder / f"died_{slot}").read_text())
    steps = [float(at) for at in re.findall(r"^\[\d\] ([\d.]+) \d+: step ", output, re.M)]
    found = min(at for at in steps if at > died + 0.01) - died
    print(f"{found:.3f} s from the death of {slot} to the next step")
    return found


@pytest.mark.parametrize(("fault", "slot"), [("killed", 1), ("root", 0)])
def test_a_killed_rank_is_replaced(fault: str, slot: int, tmp_path: Path) -> None:
    ran = run("elastic", tmp_path, "--min", "2", "--max", "3", FAULT=fault)
    assert ran.stdout.count(" done\n") == 3
    assert f"rank {slot} ended by signal 9; the others go on\n2 ranks go on\n" in ran.stderr
    assert ran.stderr.endswith("3 ranks go on\n")
    assert re.findall(r"reset (\d)", ran.stdout) == ["2", "2", "3", "3"]
    # The others begin with what was committed last.
    assert len(re.findall(r"begins \d/2 at 5$", ran.stdout, re.M)) == 2
    assert "begins 2/3 at 0\n" in ran.stdout
    check_bits(ran.stdout)
    assert seconds_to_next_step(ran.stdout, tmp_path, slot) < patient(SECONDS)


def test_a_rank_that_raises_is_replaced(tmp_path: Path) -> None:
    ran = run("elastic", tmp_path, "-n", "3", "--min", "2", FAULT="raises")
    assert ran.stdout.count(" done\n") == 3
    assert "rank 1 exited with code 1; the others go on\n" in ran.stderr
    assert "[1] ValueError: the cause\n" in ran.stderr
    check_bits(ran.stdout)


def test_a_rank_that_always_fails_ends_the_job(tmp_path: Path) -> None:
    options = ("-n", "3", "--min", "2", "--restarts", "1")
    ran = run("elastic", tmp_path, *options, code=1, FAULT="always")
    end = "rank 1 exited with code 1; it has failed 2 times, and --restarts is 1; ended the other"
    assert f"error: {end} ranks\n" in ran.stderr
    assert ran.stderr.endswith("ValueError: the cause\n")


@pytest.mark.parametrize("fault", ["connecting", "sharing"])
def test_a_death_during_recovery(fault: str, tmp_path: Path) -> None:
    ran = run("elastic", tmp_path, "-n", "4", "--min", "2", FAULT=fault)
    assert ran.stdout.count(" done\n") == 4
    assert len(re.findall("ended by signal 9; the others go on", ran.stderr)) == 2
    assert re.findall(r"reset \d", ran.stdout).count("reset 2") == 2
    check_bits(ran.stdout)
    assert seconds_to_next_step(ran.stdout, tmp_path, 2) < patient(SECONDS)


def test_too_few_ranks_end_the_job(tmp_path: Path) -> None:
    ran = run("elastic", tmp_path, "-n", "2", "--min", "2", code=137, FAULT="killed")
    end = "rank 1 ended by signal 9; 1 rank is left, and --min is 2; ended the other ranks\n"
    assert f"error: {end}" in ran.stderr


def test_a_program_that_is_not_elastic_fails_as_usual(tmp_path: Path) -> None:
    ran = run("fails", tmp_path, "-n", "3", code=137, FAILS="signal")
    assert "error: rank 1 ended by signal 9; no rank is left that took part; ended" in ran.stderr


@pytest.mark.parametrize("legacy", ["0", "1"])
def test_fit(legacy: str, tmp_path: Path) -> None:
    ran = run("elastic_fit", tmp_path, "-n", "3", TF_USE_LEGACY_KERAS=legacy)
    assert ran.stdout.count(" done\n") == 3
    assert len(re.findall(r"begins \d/2 in epoch 1$", ran.stdout, re.M)) == 2
    assert len(re.findall(r"begins \d/3", ran.stdout)) == 6
    check_bits(ran.stdout, 4)


def test_cycles_of_faults(tmp_path: Path) -> None:
    """Processes are killed, stopped or late, under load; nothing grows in those that live on."""
    with busy(), busy():
        options = ("-n", "4", "--restarts", "1000")
        timeout = {"RDMA_TRANSPORT_PEER_TIMEOUT": f"{patient(1):g}s"}
        ran = run("faults", tmp_path, *options, CYCLES="20", **timeout)
    assert len(re.findall(r"^\[\d\] cycle ", ran.stdout, re.M)) == 20
    assert " steps are those of one process\n" in ran.stdout
    for last in ("own", "launcher"):
        found = re.findall(rf"^\[0\] cycle .*'{last}': (\{{[^}}]*\}})", ran.stdout, re.M)
        early, late = (json.loads(each.replace("'", '"')) for each in (found[4], found[-1]))
        assert all(late[name] <= early[name] for name in ("fd", "task")), (early, late)
        assert late["maps"] <= early["maps"] + 10, (early, late)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def test_graphs_outlive_the_ranks_with_which_they_were_built(tmp_path: Path) -> None:
    ran = run("elastic_graphs", tmp_path, "-n", "3", "--restarts", "0")
    assert ran.stdout.count("done\n") == 2


def test_cycles_of_tensors(tmp_path: Path) -> None:
    """Nor do they in a process that trains, and recovers 20 times."""
    ran = run("elastic_cycles", tmp_path, "-n", "2", CYCLES="20")
    assert ran.stdout.count(" done\n") == 2


@pytest.mark.parametrize("legacy", ["0", "1"])
def test_details(legacy: str, tmp_path: Path) -> None:
    ran = run("elastic_details", tmp_path, "-n", "1", TF_USE_LEGACY_KERAS=legacy)
    assert ran.stdout == "[0] done\n"


def test_quiet_ranks_follow_rank_0(tmp_path: Path) -> None:
    ran = run("elastic_quiet", tmp_path, "-n", "3", "--restarts", "0", "--quiet-ranks")
    assert ran.stdout == "[0] before 0\n[1] after 0\n"
