"""Scripts for one process in elastic jobs: ranks are lost and replaced, and results stay equal."""

import re
from pathlib import Path

import pytest

from tests.data_parallel import jobs
from tests.data_parallel.expected import TOLERANCE
from tests.data_parallel.test_scripts import assert_equal

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    ("legacy", "faults", "slow"), [("0", "0@20 3@40:raises", "train"), ("1", "1@20", "test")]
)
def test_fit_goes_on(legacy: str, faults: str, slow: str, tmp_path: Path) -> None:
    one = jobs.alone("lost_ranks", tmp_path / "one", TF_USE_LEGACY_KERAS=legacy)
    variables = {"FAULTS": faults, "SLOW_IN": slow, "TF_USE_LEGACY_KERAS": legacy}
    many = jobs.together("lost_ranks", tmp_path / "many", 3, ["--elastic"], **variables)
    assert_equal(one, many, 3, TOLERANCE)
    assert many.text.count("2 ranks go on\n") == many.text.count("3 ranks go on\n")
    assert many.text.count(" dies\n") == len(faults.split())
    steps: dict[str, set[str]] = {}
    for step, bits in re.findall(r"step (\d+) (\w+)$", many.text, re.M):
        steps.setdefault(step, set()).add(bits)
    assert len(steps) == 72
    assert all(len(bits) == 1 for bits in steps.values()), steps


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("tape_eager", "In elastic jobs, ranks share what a Keras model computes in fit()"),
        ("backup_restore", "elastic jobs do not offer BackupAndRestore"),
        ("eagerly", "elastic jobs do not offer run_eagerly=True"),
    ],
)
def test_what_cannot_go_on_is_refused(script: str, reason: str, tmp_path: Path) -> None:
    ran = jobs.together(script, tmp_path / "many", options=["--elastic", "--restarts", "0"])
    assert ran.code != 0
    assert reason in " ".join(ran.text.split())
