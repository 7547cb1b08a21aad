"""The recommender learns, from clicks that it generates and from a file in Criteo's format."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ROOT
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(patient(200))


@pytest.mark.parametrize("given", [False, True])
def test_it_learns(given: bool, tmp_path: Path) -> None:
    from examples import recommender

    clicks = tmp_path / "clicks.tsv"
    if given:
        lines = [line.split("\t") for line in itertools.islice(recommender.generated(3), 5000)]
        for line in lines:
            line[5] = ""  # fields may be missing
        clicks.write_text("".join("\t".join(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "rdma_transport", "run", "--horovod", "-n", "2", "--"]
    ran = subprocess.run(
        [*command, sys.executable, "examples/recommender.py", *([str(clicks)] if given else [])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(100),
    )
    assert ran.returncode == 0, ran.stderr
    (found,) = re.findall(r"^\[0\] loss ([\d.]+) -> ([\d.]+)$", ran.stdout, re.M)
    first, last = map(float, found)
    assert last < 0.8 * first
