"""The scripts for Horovod learn with two ranks what they learn with one."""

import re
import subprocess
import sys

import pytest

from tests.support.command import ROOT
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(200)


def losses(script: str, ranks: int) -> list[float]:
    """The first loss and the last one, which rank 0 alone prints."""
    command = [sys.executable, "-m", "rdma_transport", "run", "--horovod", "-n", str(ranks), "--"]
    ran = subprocess.run(
        [*command, sys.executable, f"examples/horovod/{script}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert ran.returncode == 0, ran.stderr
    (found,) = re.findall(r"^\[0\] loss ([\d.]+) -> ([\d.]+)$", ran.stdout, re.M)
    return [float(loss) for loss in found]


@pytest.mark.parametrize("script", ["keras_fit.py", "gradient_tape.py", "session.py", "elastic.py"])
def test_ranks_learn_together(script: str) -> None:
    first, last = losses(script, 2)
    assert last < first / 4
    assert [first, last] == pytest.approx(losses(script, 1), rel=1e-3, abs=2e-4)
