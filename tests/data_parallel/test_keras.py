"""Training on two ranks by ``set_distribution()``, beside the same in one process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.deadlines import patient

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("data_parallel_keras3")]

PROGRAM = Path(__file__).parent / "cases.py"
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "0"}
LAUNCH = [sys.executable, "-m", "rdma_transport", "run", "-n", "2", "--"]


def names_of(kind: str) -> list[str]:
    """Return the names of cases or rules, without running them."""
    return re.findall(rf"^@{kind}\ndef (\w+)", PROGRAM.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """What the program wrote in one process, and on two ranks."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    program = [sys.executable, str(PROGRAM)]
    for command in ([*program, str(one), "1"], [*LAUNCH, *program, str(two), "2"]):
        ran = subprocess.run(
            command,
            env=os.environ | ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=patient(200),
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
    return one, two


def arrays(folder: Path, name: str, rank: int) -> list[np.ndarray]:
    error = folder / f"{name}.{rank}.error"
    assert not error.exists(), error.read_text()
    with np.load(folder / f"{name}.{rank}.npz") as found:
        return [found[each] for each in found.files]


@pytest.mark.parametrize("name", names_of("case"))
def test_two_ranks_equal_one_process(results: tuple[Path, Path], name: str) -> None:
    one, two = results
    expected, first, second = arrays(one, name, 0), arrays(two, name, 0), arrays(two, name, 1)
    for want, mine, theirs in zip(expected, first, second, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_allclose(mine, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", names_of("rule"))
def test_rules(results: tuple[Path, Path], name: str) -> None:
    _, two = results
    for mine, theirs in zip(arrays(two, name, 0), arrays(two, name, 1), strict=True):
        np.testing.assert_array_equal(mine, theirs)
