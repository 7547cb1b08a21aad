"""Who and where a process is by its launcher, and the meeting of several communicators."""

import os
import select
import socket
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rdma_transport.collectives.ranks import (
    Place,
    Ranks,
    find_place,
    find_ranks,
    host_id,
    place_among,
    why_alone,
)
from rdma_transport.collectives.rendezvous import Rendezvous
from rdma_transport.fabric import FabricValueError
from tests.support.deadlines import patient

RUN = [sys.executable, "-m", "rdma_transport", "run"]
STEP = {
    "SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "6", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NODELIST": "n[1-4]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1(x2),2", "SLURM_NODEID": "3", "SLURM_LOCALID": "0",
}  # fmt: skip


def test_the_place_by_the_environment() -> None:
    assert find_place({}) == Place()
    ours = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert find_place(ours) is None
    assert find_place(ours | {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}) == Place(3, 4, 0, 1)
    assert find_place({"RANK": "0", "WORLD_SIZE": "1"}) == Place()
    assert find_place({"RANK": "0", "WORLD_SIZE": "2"}) is None
    for names in (("GROUP_RANK", "GROUP_WORLD_SIZE"), ("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")):
        assert find_place(ours | dict(zip(names, ("1", "2"), strict=True))) == Place(1, 2, 1, 2)
    assert find_place(STEP) == Place(0, 2, 3, 4)
    assert find_place(STEP | {"SLURM_LOCALID": "1", "SLURM_PROCID": "5"}) == Place(1, 2, 1, 2)
    mpirun = {f"OMPI_COMM_WORLD_{name.removeprefix('WORLD_')}": value for name, value in
              (ours | {"RANK": "1", "SIZE": "2"}).items() if "LOCAL_WORLD" not in name}  # fmt: skip
    assert find_place(mpirun | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) == Place(1, 2, 0, 1)
    intel = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    assert find_place(intel) == Place(1, 2, 0, 1)
    with pytest.raises(FabricValueError, match="LOCAL_RANK=2 does not fit LOCAL_WORLD_SIZE=2"):
        find_place(ours | {"LOCAL_RANK": "2"})


def test_the_place_by_the_hosts_of_all_ranks() -> None:
    hosts = ["a", "b", "a", "a", "b", "c"]
    expected = [(0, 3, 0, 3), (0, 2, 1, 3), (1, 3, 0, 2), (2, 3, 0, 1), (1, 2, 1, 2), (0, 1, 2, 3)]
    assert [place_among(rank, hosts) for rank in range(6)] == [Place(*each) for each in expected]
    assert host_id() == host_id()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, ""),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ""),
        (STEP, ""),
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE is not"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "but OMPI_COMM_WORLD_RANK is not"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK is set by a launcher that is not known here"),
        ({"SLURM_NTASKS": "3", "SLURM_PROCID": "0"}, "the job of Slurm has 3 tasks, but srun did"),
        ({"SLURM_NTASKS": "1", "SLURM_JOB_ID": "no such job"}, ""),
    ],
)
def test_why_a_process_is_alone(variables: dict[str, str], says: str) -> None:
    found = why_alone(variables)
    assert says in found
    assert bool(says) == bool(found)


ALONE = """
    import os, sys
    from rdma_transport.collectives.ranks import why_alone
    child = os.fork()  # belongs to the same copy
    if child == 0:
        assert sys.stdin.readline() == "end\\n"
        os._exit(0)
    print(why_alone(), flush=True)
    os.waitpid(child, 0)
"""


def test_copies_of_a_command_in_one_job_are_found(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(ALONE))
    told = []
    copies: list[subprocess.Popen[str]] = []
    try:
        for job in ("one", "two", "one"):
            copies.append(
                subprocess.Popen(
                    [sys.executable, str(path)],
                    env=os.environ | {"PBS_JOBID": job},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert copies[-1].stdout is not None
            told.append(copies[-1].stdout.readline().strip())
        assert told[:2] == ["", ""]
        assert "the same command also runs on this host in the job PBS_JOBID=one" in told[2]
        assert str(copies[0].pid) in told[2]
    finally:
        for copy in copies:
            copy.communicate("end\n", timeout=patient(20))


SCRIPT = """
    import dataclasses, threading, time
    import numpy as np
    from rdma_transport.collectives import Communicator, find_ranks
    ranks = find_ranks()
    def connect(purpose):
        made = Communicator.connect(dataclasses.replace(ranks, purpose=purpose), timeout=60)
        sums[purpose] = int(made.all_reduce(np.array([ranks.rank + len(purpose)]))[0])
    sums = {}
"""
# Rank 0 connects one after the other; the others begin with the last one.
ONE_BY_ONE = """
    first, second, third = "a", "bb", "ccc"
    if ranks.rank == 0:
        for purpose in (first, second, third):
            connect(purpose)
    else:
        threads = [threading.Thread(target=connect, args=(each,)) for each in (third, second)]
        for thread in threads:
            thread.start()
            time.sleep(0.2)
        connect(first)
        for thread in threads:
            thread.join()
"""
TOGETHER = """
    purposes = ["a", "bb", "ccc"]
    purposes = purposes[ranks.rank:] + purposes[:ranks.rank]
    threads = [threading.Thread(target=connect, args=(each,)) for each in purposes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize("body", [ONE_BY_ONE, TOGETHER], ids=["one by one", "together"])
def test_communicators_meet_by_their_purpose(tmp_path: Path, body: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT + body + "    print(sorted(sums.items()))\n"))
    ran = subprocess.run(
        [*RUN, "-n", "3", "--", sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert ran.returncode == 0, ran.stderr
    sums = "[('a', 6), ('bb', 9), ('ccc', 12)]"
    assert sorted(ran.stdout.splitlines()) == [f"[{rank}] {sums}" for rank in range(3)]
    assert find_ranks({}).purpose == ""


def test_a_call_that_a_closing_listener_has_not_taken_is_made_again() -> None:
    """As where rank 0 meets for one communicator, and then for the next one."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    ranks = [Ranks(rank, 2, port=port, job="one") for rank in range(2)]
    with ThreadPoolExecutor(1) as thread, Rendezvous(ranks[1], patient(20)) as asking:
        asked = thread.submit(asking.exchange, [b"from 1", b""])
        assert select.select([listener], [], [], patient(20))[0]
        time.sleep(0.2)  # it has sent its request
        listener.close()
        with Rendezvous(ranks[0], patient(20)) as answering:
            assert answering.exchange([b"", b"from 0"])[0] == [b"", b"from 1"]
            assert asked.result(patient(20))[0] == [b"from 0", b""]


def test_many_ranks_have_many_addresses() -> None:
    """As long as those of 2,000 ranks with several cards, in each direction."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    ranks = [Ranks(rank, 2, port=port, job="one") for rank in range(2)]
    long = bytes(2000 * 250)
    with ThreadPoolExecutor(1) as thread, Rendezvous(ranks[1], patient(20)) as asking:
        asked = thread.submit(asking.exchange, [long, b""])
        with Rendezvous(ranks[0], patient(20)) as answering:
            assert answering.exchange([b"", long])[0] == [b"", long]
            assert asked.result(patient(20))[0] == [long, b""]
