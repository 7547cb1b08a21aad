"""The command ``rdma-transport run`` on two hosts."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.support.ports import free_port
from tests.support.deadlines import patient
from tests.support.namespaces import Hosts

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(120)


def test_the_ranks_of_two_hosts_are_one_job(hosts: Hosts) -> None:
    job = ["-n", "2", "--nnodes", "2", "--master-addr", hosts.first.host]
    job += ["--master-port", str(free_port())]

    def start(node: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "rdma_transport", "run", *job, "--node-rank", str(node)]
        words += ["--", sys.executable, "examples/all_reduce.py"]
        return hosts.both[node].call(
            lambda: subprocess.Popen(
                words, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )

    started = [start(1), start(0)]
    try:
        results = [each.communicate(timeout=patient(60)) for each in started]
    finally:
        for each in started:
            each.kill()
    assert [each.returncode for each in started] == [0, 0], results
    lines = sorted(line for out, _ in results for line in out.splitlines())
    assert lines == [f"[{r}] rank {r} of 4: [10. 10. 10. 10.]" for r in range(4)]
