"""`rdma-transport run --horovod`: what ranks find, and ranks that fail, end alone or are ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from bench.support.ports import free_port
from tests.rdma_transport.test_ranks import STEP
from tests.support.deadlines import patient

RUN = [sys.executable, "-m", "rdma_transport", "run", "--horovod"]
Script = Callable[[str], str]


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *words],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )


SHOW = """
    import os
    from rdma_transport.collectives.ranks import find_place
    from rdma_transport.error_file import note_part
    note_part()
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = [[os.environ[f"{prefix}_{name}"] for name in names]
              for prefix in ("HOROVOD", "OMPI_COMM_WORLD")]
    assert values[0] == values[1]
    cross = [os.environ[f"HOROVOD_CROSS_{name}"] for name in names[:2]]
    place = find_place()
    assert [*values[0][2:], *cross] == [str(number) for number in vars(place).values()]
    print(*values[0], *cross)
"""


def test_ranks_find_what_programs_read(script: Script) -> None:
    ran = run("-n", "3", "--", sys.executable, script(SHOW))
    assert sorted(ran.stdout.splitlines()) == [f"[{r}] {r} 3 {r} 3 0 1" for r in range(3)], ran
    second = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1")
    port = ("--master-port", str(free_port()))
    ran = run("-n", "2", *second, *port, "--", sys.executable, script(SHOW))
    shown = [f"[{r}] {r} 4 {r - 2} 2 1 2" for r in (2, 3)]
    assert sorted(ran.stdout.splitlines()) == shown, ran
    ran = run("--", sys.executable, script(SHOW), **STEP)
    assert ran.stdout == "[4] 4 6 0 2 3 4\n", ran


def test_jobs_that_mpirun_would_multiply_are_refused() -> None:
    mpirun = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    ran = run("-n", "1", "--", "true", **mpirun)
    assert ran.returncode == 2
    assert "mpirun started 2 copies of this command" in " ".join(ran.stderr.split())
    assert run("-n", "1", "--", "true", **mpirun, RANK="0", WORLD_SIZE="2").returncode == 0
    assert run("-n", "1", "--", "true", **mpirun | {"OMPI_COMM_WORLD_SIZE": "1"}).returncode == 0


def test_a_rank_without_init_fails_the_job() -> None:
    note = "import rdma_transport.error_file as e; e.note_part(); import time; time.sleep(100)"
    command = ("sh", "-c", f"test $RANK = 1 || exec {sys.executable} -c '{note}'")
    ran = run("-n", "3", "--", *command)
    assert ran.returncode == 1
    assert "error: rank 1 ended without having called init() of Horovod. It trained" in ran.stderr
    assert ran.stderr.endswith("; ended the other ranks\n")
    ran = run("--", "true", **STEP)
    assert ran.returncode == 1
    assert "error: rank 4 ended without having called init() of Horovod" in ran.stderr
    assert run("-n", "1", "--", "true").returncode == 0  # it is meant to be alone
    assert run("-n", "2", "--", "sh", "-c", "exit 3").returncode == 3


# A rank that waits for one that fails, by mpi4py's face, beside a group for another purpose.
FAILS = """
    import dataclasses, os, sys
    from mpi4py import MPI
    import numpy as np
    from rdma_transport.collectives import Communicator, find_ranks
    from rdma_transport.error_file import note_part
    ranks = dataclasses.replace(find_ranks(), purpose="tensorflow")
    group = Communicator.connect(ranks)
    note_part()
    comm = MPI.COMM_WORLD
    assert comm.allgather(comm.rank) == list(range(comm.size))
    if comm.rank == 1:
        pending = comm.isend(np.zeros(1 << 24), 0)  # nobody receives it
        {}
    {}
"""


@pytest.mark.parametrize(
    ("failure", "waits", "code", "says"),
    [
        (
            "def inner(): raise ValueError('the cause')\n        inner()",
            *("comm.Barrier()", 1, "in inner"),
        ),
        ("sys.exit(3)", "comm.recv(source=1)", 3, "exited with code 3"),
        ("raise SystemExit('the cause')", "group.barrier()", 1, "exited with code 1"),
        ("os.kill(os.getpid(), 9)", "comm.Barrier()", 137, "ended by signal 9"),
    ],
    ids=["an exception", "exit", "SystemExit", "a signal"],
)
def test_a_rank_that_fails_does_not_wait_for_the_others(
    script: Script, failure: str, waits: str, code: int, says: str
) -> None:
    ran = run("-n", "3", "--", sys.executable, script(FAILS.format(failure, waits)))
    assert ran.returncode == code, ran.stderr
    last = ran.stderr.rpartition("error: rank 1 ")[2]
    assert "; ended the other ranks\n" in last
    assert says in last
    assert "the cause" not in failure or last.endswith("the cause\n")


BESIDE = """
    import dataclasses
    from rdma_transport.collectives import Communicator, find_ranks
    from rdma_transport.error_file import note_part
    ranks = find_ranks()
    if ranks.rank == 0:
        from mpi4py import MPI
    group = Communicator.connect(dataclasses.replace(ranks, purpose="tensorflow"))
    note_part()
    from mpi4py import MPI
    import numpy as np
    comm = MPI.COMM_WORLD
    names = comm.allgather(MPI.Get_processor_name())
    assert names == [MPI.Get_processor_name()] * comm.Get_size()
    numbers = np.arange(4.0) if comm.Get_rank() == 0 else np.empty(4)
    comm.Bcast(numbers, root=0)
    assert (numbers == np.arange(4.0)).all()
    part = np.empty(2)
    comm.Scatter(np.arange(2.0 * comm.size) if comm.rank == 0 else None, part)
    assert (part == [2 * comm.rank, 2 * comm.rank + 1]).all()
    assert group.all_reduce(np.ones(1))[0] == comm.size
    print("good")
"""


def test_mpi4py_beside_another_communicator(script: Script) -> None:
    ran = run("-n", "3", "--", sys.executable, script(BESIDE))
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [f"[{rank}] good" for rank in range(3)]


ONE_IMPORTS = """
    import dataclasses
    from rdma_transport.collectives import Communicator, find_ranks
    from rdma_transport.error_file import note_part
    ranks = find_ranks()
    Communicator.connect(dataclasses.replace(ranks, purpose="tensorflow"))
    note_part()
    if ranks.rank == {}:
        from mpi4py import MPI
        assert MPI.COMM_WORLD.size == 2
    print("good")
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_only_one_rank_may_import_mpi4py(script: Script, rank: int) -> None:
    ran = run("-n", "2", "--", sys.executable, script(ONE_IMPORTS.format(rank)))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("good") == 2


@pytest.fixture
def running(script: Script) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    text = "from mpi4py import MPI\nprint('started', MPI.COMM_WORLD.allreduce(1))\n"
    path = script(text + "MPI.COMM_WORLD.recv(source=1)\n")
    with subprocess.Popen(
        [*RUN, "-n", "2", "--", sys.executable, path], stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        for _ in range(2):
            assert "started 2" in job.stdout.readline()
        ranks = psutil.Process(job.pid).children(recursive=True)
        yield job, ranks
        job.kill()


def test_ctrl_c_ends_ranks_that_wait_for_each_other(
    running: tuple[subprocess.Popen[str], list[psutil.Process]],
) -> None:
    job, ranks = running
    job.send_signal(signal.SIGINT)
    assert job.wait(patient(30)) == 130
    assert not psutil.wait_procs(ranks, patient(10))[1]


def test_two_jobs_on_one_host_do_not_meet() -> None:
    hosts = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1")
    port = ("--master-port", str(free_port()))
    words = [*RUN, "-n", "1", *hosts, *port, "--", "sh", "-c", "echo started; exec sleep 100"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert "started" in first.stdout.readline()
        second = run("-n", "1", *hosts, *port, "--", "true")
        assert second.returncode == 2
        told = " ".join(second.stderr.split())
        assert f"another job of this host meets at 127.0.0.1:{port[1]}: give another" in told
        first.send_signal(signal.SIGTERM)
        assert first.wait(patient(30)) == 143
