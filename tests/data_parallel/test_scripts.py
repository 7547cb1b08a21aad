"""Scripts for one process, as users write them, on several ranks: equal, nearly so, or refused.

One process that knows nothing of this project is the oracle for each script. Most scripts run one
after another in one job, each in processes that begin with TensorFlow imported.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.data_parallel import jobs
from tests.data_parallel.expected import (
    OF_VARIANCES,
    REFUSED,
    SMALL_METRIC,
    STATISTICAL,
    TOLERANCE,
    TOLERANCES,
    equal,
    ranks_of,
    scripts_of,
)

pytestmark = pytest.mark.timeout(900)


def _in_job(job: str, script: str) -> Any:
    """Let one of several test processes run a job, and look at its scripts."""
    group = pytest.mark.xdist_group(f"data_parallel_{job}")
    return pytest.param(job, script, marks=group, id=f"{script}-{ranks_of(job)}")


_jobs: dict[str, dict[str, jobs.Ran]] = {}


@pytest.fixture
def ran(job: str, script: str, tmp_path_factory: pytest.TempPathFactory) -> jobs.Ran:
    """How a script ended in its job, which runs when the first of its scripts is asked for."""
    if job not in _jobs:
        _jobs[job] = jobs.several(scripts_of(job), tmp_path_factory.mktemp(job), ranks_of(job))
    return _jobs[job][script]


def assert_equal(one: jobs.Ran, many: jobs.Ran, ranks: int, tolerance: float) -> None:
    """Check that all ranks end with the same, and with what one process ends with."""
    assert one.code == 0, one.text
    assert many.code == 0, many.text
    (expected,), found = one.arrays, many.arrays
    assert len(found) == ranks, many.text
    for other in found[1:]:
        assert jobs.difference(found[0], other)[0] == 0
    differs, where = jobs.difference(expected, found[0])
    assert differs <= tolerance, where


@pytest.mark.parametrize(("job", "script"), [_in_job(*each) for each in equal()])
def test_equal(job: str, script: str, ran: jobs.Ran, tmp_path: Path) -> None:
    tolerance = TOLERANCES.get(script, TOLERANCE)
    assert_equal(jobs.alone(script, tmp_path / "one"), ran, ranks_of(job), tolerance)


@pytest.mark.parametrize(("job", "script"), [_in_job("statistical", name) for name in STATISTICAL])
def test_statistically_equal(job: str, script: str, ran: jobs.Ran, tmp_path: Path) -> None:
    one = jobs.alone(script, tmp_path / "one")
    assert ran.code == 0, ran.text
    first, second = ran.arrays
    assert jobs.difference(first, second)[0] == 0
    expected, found = float(one.arrays[0]["metric"]), float(first["metric"])
    assert abs(expected - found) <= STATISTICAL[script] * max(expected, SMALL_METRIC)


@pytest.mark.parametrize(("job", "script"), [_in_job("refused", name) for name in REFUSED])
def test_refused(job: str, script: str, ran: jobs.Ran) -> None:
    assert ran.code != 0
    assert REFUSED[script] in " ".join(ran.text.split())


# As users start it: without TensorFlow imported before.


@pytest.mark.parametrize(("script", "ranks"), [("uneven_batch", 2), ("arguments", 3)])
def test_a_script(script: str, ranks: int, tmp_path: Path) -> None:
    """One imports Keras first, the other TensorFlow, which looks for Keras without importing it."""
    one = jobs.alone(script, tmp_path / "one")
    assert_equal(one, jobs.together(script, tmp_path / "many", ranks), ranks, TOLERANCE)


def test_a_package(tmp_path: Path) -> None:
    one = jobs.alone("package.train", tmp_path / "one")
    assert_equal(one, jobs.together("package.train", tmp_path / "many"), 2, TOLERANCE)


@pytest.mark.parametrize("script", ["unseeded_shuffle", "hash_order"])
def test_what_is_not_seeded(script: str, tmp_path: Path) -> None:
    """One rank has the seeds that several have; one process alone has others in each run."""
    one = jobs.together(script, tmp_path / "one", 1)
    assert_equal(one, jobs.together(script, tmp_path / "many"), 2, TOLERANCE)


@pytest.mark.parametrize(("script", "ranks"), [("batch_norm", 2), ("tiny_batch_norm", 3)])
def test_synchronized_batch_normalization(script: str, ranks: int, tmp_path: Path) -> None:
    one = jobs.alone(script, tmp_path / "one")
    many = jobs.together(script, tmp_path / "many", ranks, options=["--sync-batch-norm"])
    assert_equal(one, many, ranks, OF_VARIANCES)


def test_gradients_sent_as_factors(tmp_path: Path) -> None:
    one = jobs.alone("uneven_batch", tmp_path / "one")
    many = jobs.together("uneven_batch", tmp_path / "many", RDMA_TRANSPORT_GRADIENTS="factors")
    assert_equal(one, many, 2, TOLERANCE)


def test_a_script_that_shares_nothing_fails(tmp_path: Path) -> None:
    ran = jobs.together("no_tensorflow", tmp_path / "many")
    assert ran.code == 1
    assert "ended without any reduction" in ran.text


def test_a_script_that_only_predicts(tmp_path: Path) -> None:
    one = jobs.alone("never_trains", tmp_path / "one")
    assert_equal(one, jobs.together("never_trains", tmp_path / "many"), 2, TOLERANCE)


def test_its_own_exit_code(tmp_path: Path) -> None:
    ran = jobs.together("exit_code", tmp_path / "many")
    assert ran.code == 3, ran.text
    assert len(ran.arrays) == 2


def test_a_failure_of_one_rank_ends_the_job(tmp_path: Path) -> None:
    ran = jobs.together("fails_on_one_rank", tmp_path / "many")
    assert ran.code == 1
    assert "FileExistsError" in ran.text
