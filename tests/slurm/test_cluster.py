"""The cluster itself: its nodes are hosts of their own, and nothing remains of them."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.slurm.cluster import Slurm
from tests.support.command import ROOT
from tests.support.deadlines import eventually

pytestmark = pytest.mark.timeout(120, func_only=True)
KILLED = """
import sys, time
from pathlib import Path
from tests.slurm.cluster import Slurm
slurm = Slurm(Path(sys.argv[1]))
print(*(pid for node in slurm.nodes.values() for pid in (node.pid, *node.processes())), flush=True)
time.sleep(60)
"""


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_a_cluster_ends_with_the_process_that_made_it(slurm: Slurm, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        processes = [int(pid) for pid in maker.stdout.readline().split()]
        maker.send_signal(signal.SIGKILL)
    assert len(processes) >= 11  # of five nodes: the first process, and the daemons
    assert eventually(lambda: not any(map(running, processes)), 30)
