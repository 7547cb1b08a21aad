"""The command ``rdma-transport run``, and ``rdma_transport.mpi`` in the processes it starts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rdma_transport.collectives import Ranks, find_ranks
from rdma_transport.fabric import FabricValueError
from rdma_transport.slurm import first_host
from tests.support.deadlines import patient
from tests.support.members import TCP

OVER_LIBFABRIC = {"RDMA_TRANSPORT_FABRIC": "libfabric"}
REPOSITORY = Path(__file__).parents[2]
RUN = [sys.executable, "-m", "rdma_transport", "run"]


def run(*words: str, timeout: float = 60, **options: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*RUN, *words], capture_output=True, text=True, timeout=timeout, check=False, **options
    )  # type: ignore[call-overload]


def test_output_has_the_rank_and_the_code_is_zero() -> None:
    result = run("-n", "3", "--", "sh", "-c", "echo out $RANK of $WORLD_SIZE; echo err >&2")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"[{r}] out {r} of 3" for r in range(3)]
    assert sorted(result.stderr.splitlines()) == [f"[{r}] err" for r in range(3)]


def test_the_example_sums_over_all_ranks() -> None:
    result = run("-n", "3", "--", sys.executable, "examples/all_reduce.py", cwd=REPOSITORY)
    assert result.returncode == 0, result.stderr
    lines = [f"[{r}] rank {r} of 3: [6. 6. 6. 6.]" for r in range(3)]
    assert sorted(result.stdout.splitlines()) == lines


def test_the_first_failing_rank_ends_all() -> None:
    start = time.monotonic()
    result = run("-n", "2", "sh", "-c", "test $RANK = 1 && exit 7; sleep 1000")
    assert result.returncode == 7
    assert "rank 1 exited with code 7" in result.stderr
    assert time.monotonic() - start < patient(50)
    assert run("-n", "1", "--", "sh", "-c", "kill -9 $$").returncode == 137


FIRST = """
    import sys
    print("2026-11-28 00:39:07.727441: I tensorflow/core: this CPU has", file=sys.stderr)
    print("I0000 00:00:1795826279.608226   28187 port.cc:153] oneDNN", file=sys.stderr)
    from rdma_transport.collectives import Communicator
    world = Communicator.connect()
    if world.rank == 1:
        {}
    world.barrier()
"""


@pytest.mark.parametrize(
    ("failure", "code", "cause"),
    [
        ("raise ValueError('the cause')", 1, "ValueError: the cause"),
        ("sys.exit('3 is odd')", 1, "3 is odd"),
    ],
)
def test_ranks_that_fail_because_of_another_are_not_blamed(
    script: object, failure: str, code: int, cause: str
) -> None:
    path = script(FIRST.format(failure))  # type: ignore[operator]
    result = run("-n", "3", "--", sys.executable, path)
    assert result.returncode == code
    assert f"error: rank 1 exited with code {code}; ended the other ranks\n" in result.stderr
    last = result.stderr.rpartition("the last lines of its errors:\n")[2]
    assert last.startswith(("Traceback", "3 is odd"))
    assert result.stderr.endswith(f"{cause}\n")


def test_each_rank_has_its_share_of_the_processors() -> None:
    show = "import os; print(*os.sched_getaffinity(0))"
    everything = os.sched_getaffinity(0)
    for words, share in (
        ((), len(everything) // 2 or 1),
        (("--no-bind",), len(everything)),
    ):
        result = run("-n", "2", *words, "--", sys.executable, "-c", show)
        assert result.returncode == 0, result.stderr
        shares = [set(map(int, line.split()[1:])) for line in result.stdout.splitlines()]
        assert [len(each) for each in shares] == [share, share]
        assert set.union(*shares) <= everything
        assert words or len(everything) == 1 or not set.intersection(*shares)
    many = str(len(everything) + 1)
    result = run("-n", many, "--", sys.executable, "-c", show)
    shares = [set(map(int, line.split()[1:])) for line in result.stdout.splitlines()]
    assert shares == [everything] * (len(everything) + 1)


def test_wrong_usage() -> None:
    assert run("-n", "0", "true").returncode == 2
    assert run("--", "no-such-program").returncode == 2
    assert run().returncode == 2


def test_wrong_usage_of_several_hosts() -> None:
    for words, missing in (
        (["--nnodes", "2", "--node-rank", "0"], "--master-addr"),
        (["--nnodes", "2", "--master-addr", "127.0.0.1"], "--node-rank"),
        (["--nnodes", "2", "--node-rank", "2", "--master-addr", "a"], "the last one is 1"),
        (["--node-rank", "1"], "--nnodes"),
    ):
        result = run(*words, "true")
        assert result.returncode == 2
        assert missing in result.stderr


def test_one_host_may_be_described_as_several_are() -> None:
    one = ("--nnodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1")
    assert run("-n", "2", *one, "--", "sh", "-c", "test $WORLD_SIZE = 2").returncode == 0


def test_a_rank_of_the_second_host_that_fails() -> None:
    second = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1")
    result = run("-n", "2", *second, "--", "sh", "-c", "test $RANK = 3 && exit 7; sleep 100")
    assert result.returncode == 7
    assert "rank 3 exited with code 7; ended this host's other ranks" in result.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_all_ranks(number: signal.Signals, code: int) -> None:
    command = [*RUN, "-n", "2", "--", "sh", "-c", "echo started; sleep 100"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout is not None
        for _ in range(2):
            assert "started" in job.stdout.readline()
        children = psutil.Process(job.pid).children(recursive=True)
        job.send_signal(number)
        assert job.wait(patient(30)) == code
        _, alive = psutil.wait_procs(children, 10)
        assert not alive
    finally:
        job.kill()
        job.wait()
        job.stdout.close()


def test_ranks_end_with_the_command() -> None:
    command = [*RUN, "-n", "2", "--", "sh", "-c", "echo started; exec sleep 100"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    for _ in range(2):
        assert "started" in job.stdout.readline()
    children = psutil.Process(job.pid).children(recursive=True)
    job.kill()
    job.wait()
    job.stdout.close()
    assert not psutil.wait_procs(children, 10)[1]


MEETS = """
    import sys
    from rdma_transport.collectives import Communicator
    try:
        world = Communicator.connect(timeout=float(sys.argv[1]))
        print(world.all_gather_object(world.rank))
    except Exception as error:
        print(type(error).__name__, error)
"""


def start(script: str, timeout: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, script, timeout],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_ranks_of_mpirun_meet_and_a_missing_one_is_named(script: object) -> None:
    from bench.support.ports import free_port

    path = script(MEETS)  # type: ignore[operator]
    place = {"MASTER_PORT": str(free_port()), "OMPI_COMM_WORLD_SIZE": "2"}
    jobs = [start(path, "30", OMPI_COMM_WORLD_RANK=str(rank), **place) for rank in range(2)]
    assert [job.communicate(timeout=patient(60))[0] for job in jobs] == ["[0, 1]\n"] * 2
    alone = start(path, "1", OMPI_COMM_WORLD_RANK="0", **place)
    assert "FabricTimeoutError rank 1 did not connect" in alone.communicate(timeout=patient(60))[0]
    alone = start(path, "1", OMPI_COMM_WORLD_RANK="1", **place)
    assert "FabricTimeoutError rank 0 does not listen" in alone.communicate(timeout=patient(60))[0]


def test_ranks_have_the_time_to_meet_that_the_command_gives_them() -> None:
    connect = "from rdma_transport.collectives import Communicator; Communicator.connect()"
    late = f"test $RANK = 1 && exec sleep 1000; exec {sys.executable} -c '{connect}'"
    result = run("--start-timeout", "1", "-n", "2", "--", "sh", "-c", late, timeout=patient(60))
    assert result.returncode == 1
    assert "rank 1 did not connect" in result.stderr
    assert "within 1 s" in result.stderr


def test_a_rank_with_another_secret_is_refused(script: object, tmp_path: Path) -> None:
    from bench.support.ports import free_port

    path = script(MEETS)  # type: ignore[operator]
    jobs = []
    port = str(free_port())
    for rank in range(2):
        secret = tmp_path / f"secret{rank}"
        secret.write_text(f"{rank}" * 40)
        secret.chmod(0o600)
        jobs.append(
            start(path, str(patient(3)), RANK=str(rank), WORLD_SIZE="2", MASTER_PORT=port,
                  RDMA_TRANSPORT_SECRET_FILE=str(secret))
        )  # fmt: skip
    answers = [job.communicate(timeout=patient(60))[0] for job in jobs]
    assert "rank 1 did not connect" in answers[0]
    assert "secret" in answers[1]


def test_ranks_without_shared_memory_meet(script: object) -> None:
    path = script(MEETS)  # type: ignore[operator]
    result = run("-n", "2", "--", sys.executable, path, "20", env=os.environ | TCP | OVER_LIBFABRIC)
    assert sorted(result.stdout.splitlines()) == ["[0] [0, 1]", "[1] [0, 1]"], result.stderr


def test_ranks_from_the_environment() -> None:
    assert find_ranks({}) == Ranks(0, 1)
    ours = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "99"}
    assert find_ranks(ours) == Ranks(1, 4, "10.0.0.1", 99)
    torchrun = ours | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert find_ranks(torchrun).port != 99
    for wrong in ({"RANK": "4"}, {"RANK": "x"}, {"WORLD_SIZE": "-1"}):
        with pytest.raises(FabricValueError):
            find_ranks(ours | wrong)


STEP = {
    "SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[02-03]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_NODEID": "1", "SLURM_LOCALID": "0",
}  # fmt: skip


def test_ranks_of_a_step_of_slurm() -> None:
    found = find_ranks(STEP)
    assert (found.rank, found.size, found.host, found.job) == (2, 3, "n02", "7.0")
    assert found.port == find_ranks(STEP | {"SLURM_PROCID": "0"}).port
    assert find_ranks(STEP | {"MASTER_ADDR": "n4", "MASTER_PORT": "9"}).host == "n4"
    assert find_ranks(STEP | {"SLURM_STEP_NUM_NODES": "1"}).host == "127.0.0.1"
    with pytest.raises(FabricValueError):
        find_ranks(STEP | {"SLURM_PROCID": "3"})
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "7"}  # of sbatch -n 3
    assert find_ranks(batch) == Ranks(0, 1)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n1,m[2-3]", "n1"), ("n[007-9,12],m1", "n007"), ("r[2,4]n[3-5]", "r2n3")],
)
def test_the_first_host_of_a_list_of_slurm(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_task_of_slurm_is_one_rank() -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    show = "echo " + " ".join(f"${name}" for name in names)
    result = run("--", "sh", "-c", show, env=os.environ | STEP)
    assert result.stdout == "2 3 0 1 n02\n", result.stderr
    several = ("-n", "2", "--nnodes", "2", "--node-rank", "1", "--master-addr", "n02")
    for words in (several[:2], several[2:], several):
        result = run(*words, "--", "sh", "-c", show, env=os.environ | STEP)
        assert result.returncode == 2
        assert f"omit {' '.join(words)}. " in " ".join(result.stderr.split()), result.stderr
    one = STEP | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    result = run("--", "sh", "-c", show, env=os.environ | one)
    assert result.stdout.count(" 2 ") == 4, result.stderr  # two ranks of this command's own
