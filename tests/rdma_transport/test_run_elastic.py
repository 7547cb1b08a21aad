"""`rdma-transport run --elastic`: what it refuses, and how jobs end whose ranks do not train."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rdma_transport.elastic.discovery import parse_hosts
from rdma_transport.errors import BadInputError
from tests.support.deadlines import eventually, patient

RUN = [sys.executable, "-m", "rdma_transport", "run"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *words], capture_output=True, text=True, timeout=patient(60), check=False
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--min", "2"), "--min, --max and --restarts need --elastic"),
        (("--elastic", "-n", "2", "--min", "3"), "begins with 2 ranks (--ranks), which must not"),
        (("--elastic", "-n", "4", "--max", "3"), "nor more than --max 3"),
        (("--elastic", "--data-parallel", "--scale-batch"), "not for --scale-batch"),
        (
            ("--elastic", "--data-parallel", "--node-rank", "0", "--master-addr", "a"),
            "is for the ranks of one host",
        ),
        (("--elastic", "--nnodes", "2"), "an elastic job of several hosts needs --node-rank"),
        (("--elastic", "--node-rank", "1"), "an elastic job of several hosts needs --node-rank"),
        (("--elastic", "-n", "2", "--max", "3"), "and no other host can join"),
        (("--hostfile", "hosts"), "--hostfile and --host-discovery-script need --elastic"),
        (("--elastic", "--hostfile", "no-such-file"), "cannot list hosts by no-such-file"),
        (("--elastic", "--hostfile", "a", "--host-discovery-script", "b"), "not both"),
        (("--elastic", "--hostfile", "a", "--nnodes", "2"), "omit --nnodes"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], message: str) -> None:
    ran = run(*options, "--", "true")
    assert ran.returncode == 2
    assert message in " ".join(ran.stderr.split()), ran.stderr


CONNECT = "from rdma_transport.collectives import Communicator; c = Communicator.connect(); "


def test_ranks_that_do_not_come_are_not_awaited_for_ever() -> None:
    late = f"test $RANK = 1 && exec sleep 100; exec {sys.executable} -c '{CONNECT}print(c.size)'"
    options = ("--elastic", "-n", "3", "--start-timeout", "5")
    ran = run(*options, "--min", "3", "--", "sh", "-c", late)
    assert ran.returncode == 1
    assert "error: 2 of at least 3 ranks have called init() within 5 s." in ran.stderr
    # With fewer, the others begin.
    ran = run(*options, "--min", "2", "--", "sh", "-c", late)
    assert sorted(ran.stdout.splitlines()) == ["[0] 2", "[2] 2"], ran
    assert ran.returncode == 0


def test_a_signal_ends_a_job_that_waits(tmp_path: Path) -> None:
    note = tmp_path / "connected"
    script = f"{CONNECT}open('{note}', 'w').close(); c.close(); Communicator.connect()"
    command = f'test $RANK = 1 && exec sleep 100; exec {sys.executable} -c "{script}"'
    options = ("--elastic", "-n", "2", "--start-timeout", "1", "--", "sh", "-c", command)
    with subprocess.Popen([*RUN, *options], stderr=subprocess.DEVNULL) as job:
        assert eventually(note.exists)
        job.send_signal(signal.SIGTERM)
        assert job.wait(patient(20)) == 128 + signal.SIGTERM


def test_nothing_is_replaced_once_a_rank_has_come_to_its_end() -> None:
    script = f"{CONNECT}c.barrier(); c.close(); import time; time.sleep(c.rank * 3)"
    command = f"{script}; exit(c.rank * 3)"
    ran = run("--elastic", "-n", "2", "--", sys.executable, "-c", command)
    assert ran.returncode == 3
    assert "error: rank 1 exited with code 3; no ranks are left, and --min is 1" in ran.stderr


def test_hosts_are_listed_as_for_horovod() -> None:
    text = "# all\n node1:4\nnode2 slots=3 \n\nnode3 # two\n10.0.0.4 : 1\n"
    assert parse_hosts(text, 2) == {"node1": 4, "node2": 3, "node3": 2, "10.0.0.4": 1}
    for bad in ("node1:", "node1 node2", "node1:0", "node1 slots=x"):
        with pytest.raises(BadInputError, match="is no host"):
            parse_hosts(bad, 2)
