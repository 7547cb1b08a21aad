"""Training on two ranks, beside the same in one process."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.data_parallel.cases import names_of
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(900)

_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}


@dataclass(frozen=True)
class _Results:
    """What the cases of a program returned, in one process and on two ranks."""

    one: Path
    two: Path


def _run(program: str, folder: Path) -> _Results:
    one, two = folder / "one", folder / "two"
    launch = [sys.executable, "-m", "rdma_transport", "run", "-n", "2", "--"]
    started = []
    for ranks, results, prefix in (("1", one, []), ("2", two, launch)):
        results.mkdir()
        command = [*prefix, sys.executable, "-m", f"tests.data_parallel.cases.{program}"]
        legacy = {"TF_USE_LEGACY_KERAS": "1"} if program == "tf_keras" else {}
        started.append(
            subprocess.Popen(
                [*command, str(results)],
                env=os.environ | _ENVIRONMENT | legacy | {"RANKS": ranks},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        printed = [each.communicate(timeout=patient(400))[0] for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()
    for each, text in zip(started, printed, strict=True):
        assert each.returncode == 0, text
    return _Results(one, two)


@pytest.fixture(scope="module")
def keras3(tmp_path_factory: pytest.TempPathFactory) -> _Results:
    return _run("keras3", tmp_path_factory.mktemp("keras3"))


@pytest.fixture(scope="module")
def tf_keras(tmp_path_factory: pytest.TempPathFactory) -> _Results:
    return _run("tf_keras", tmp_path_factory.mktemp("tf_keras"))


def _arrays(folder: Path, name: str, rank: int) -> list[np.ndarray]:
    error = folder / f"{name}.{rank}.error"
    assert not error.exists(), error.read_text()
    with np.load(folder / f"{name}.{rank}.npz") as found:
        return [found[each] for each in found.files]


def _compare(results: _Results, name: str) -> None:
    expected = _arrays(results.one, name, 0)
    first, second = (_arrays(results.two, name, rank) for rank in (0, 1))
    assert len(expected) == len(first) == len(second)
    for want, mine, theirs in zip(expected, first, second, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        np.testing.assert_allclose(mine, want, rtol=2e-5, atol=2e-5)


@pytest.mark.xdist_group("data_parallel_keras3")
@pytest.mark.parametrize("name", names_of("keras3"))
def test_keras3_equals_one_process(keras3: _Results, name: str) -> None:
    _compare(keras3, name)


@pytest.mark.xdist_group("data_parallel_tf_keras")
@pytest.mark.parametrize("name", names_of("tf_keras"))
def test_tf_keras_equals_one_process(tf_keras: _Results, name: str) -> None:
    _compare(tf_keras, name)


def _run_rules(folder: Path) -> Path:
    launch = [sys.executable, "-m", "rdma_transport", "run", "-n", "2", "--", sys.executable]
    ran = subprocess.run(
        [*launch, "-m", "tests.data_parallel.cases.keras3_rules", str(folder)],
        env=os.environ | _ENVIRONMENT | {"RANKS": "2"},
        capture_output=True,
        text=True,
        timeout=patient(400),
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _run_rules(tmp_path_factory.mktemp("rules"))


@pytest.mark.xdist_group("data_parallel_keras3_rules")
@pytest.mark.parametrize("name", names_of("keras3_rules"))
def test_rules(rules: Path, name: str) -> None:
    first, second = (_arrays(rules, name, rank) for rank in (0, 1))
    for mine, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, theirs)
