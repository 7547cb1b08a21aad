"""TensorFlow 2's distribution strategies learn the same over rdma as over gRPC, bit for bit."""

import re
from pathlib import Path

import pytest

from tests.support.scripts import (
    ENVIRONMENT,
    MIRRORED,
    PARAMETER_SERVER,
    STRATEGIES,
    ForkedCluster,
    Outcome,
    bytes_by_fabric,
    outcome,
)

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("strategies")]

# What a step of these scripts moves between the parameter server and a worker, at least.
STEP_BYTES = 2 * 64 * 256 * 4


def assert_learnt(result: Outcome) -> None:
    for losses in result.losses.values():
        first, last = float(losses[0]), float(losses[-1])
        assert last < first / 4


def assert_collectives_went_by_the_fabric(result: Outcome) -> None:
    assert set(result.stats) == {"worker:0", "worker:1"}, "both workers have rdma servers"
    assert bytes_by_fabric(result) > len(result.losses["worker:0"]) * STEP_BYTES / 4
    for stats in result.stats.values():
        assert stats["collectives"]["RdmaDirectReduce"] >= len(result.losses["worker:0"])
        assert stats["ring_reasons"] == {}


def test_a_loop_with_a_parameter_server() -> None:
    script = ("parameter_server_loop.py", PARAMETER_SERVER)
    oracle = outcome(*script, "grpc")
    # No tensor leaves the fabric, or the script fails.
    result = outcome(*script, "rdma", settings=(("RDMA_TRANSPORT_FALLBACK", "forbid"),))
    assert result.losses == oracle.losses
    assert_learnt(result)
    assert bytes_by_fabric(result) > 2 * len(result.losses["chief:0"]) * STEP_BYTES


def test_fit_with_a_parameter_server() -> None:
    script = ("parameter_server_fit.py", PARAMETER_SERVER)
    result = outcome(*script, "rdma")
    assert result.losses == outcome(*script, "grpc").losses
    assert_learnt(result)
    # The datasets of the workers are sent to them as strings.
    sent = bytes_by_fabric(result, "a string tensor")
    assert sent > len(result.losses["chief:0"]) * STEP_BYTES


@pytest.mark.parametrize("script", ["mirrored_fit.py", "mirrored_loop.py"])
def test_mirrored_workers(script: str) -> None:
    result = outcome(script, MIRRORED, "rdma")
    assert result.losses == outcome(script, MIRRORED, "grpc").losses
    assert result.losses["worker:0"] == result.losses["worker:1"]
    assert_learnt(result)
    assert_collectives_went_by_the_fabric(result)


def with_other_keras(script: str, changes: dict[str, str], folder: Path) -> str:
    """The path of a copy of the script with these changes."""
    text = (STRATEGIES / script).read_text()
    for pattern, other in changes.items():
        text, count = re.subn(pattern, other, text)
        assert count == 1, pattern
    path = folder / script
    path.write_text(text)
    return str(path)


LOOPS = [("mirrored_loop.py", MIRRORED), ("parameter_server_loop.py", PARAMETER_SERVER)]


@pytest.mark.parametrize(("script", "jobs"), LOOPS, ids=["mirrored", "servers"])
def test_loops_with_tf_keras(
    script: str, jobs: tuple[tuple[str, int], ...], tmp_path: Path
) -> None:
    path = with_other_keras(script, {"import keras": "import tf_keras as keras"}, tmp_path)
    result = outcome(path, jobs, "rdma")
    assert result.losses == outcome(path, jobs, "grpc").losses
    assert_learnt(result)
    assert bytes_by_fabric(result) > 0


# Keras 3 has no DatasetCreator. If these ever work, docs/compatibility.md has a row to correct.
KERAS_3 = {"import tf_keras as keras": "import keras"}
DATASET = {r"keras\.utils\.experimental\.DatasetCreator\(dataset\)": "dataset()"}
FITS = [
    ("mirrored_fit.py", MIRRORED, {}, r"'tensorflow\.python\.distribute\.values\.PerReplica'"),
    ("parameter_server_fit.py", PARAMETER_SERVER, DATASET, r"^ValueError: To use this dataset"),
]


@pytest.mark.parametrize(("script", "jobs", "changes", "error"), FITS, ids=["mirrored", "servers"])
@pytest.mark.parametrize("protocol", ["grpc", "rdma"])
def test_fit_of_keras_3_fails_over_both_protocols(
    protocol: str,
    script: str,
    jobs: tuple[tuple[str, int], ...],
    changes: dict[str, str],
    error: str,
    tmp_path: Path,
) -> None:
    path = with_other_keras(script, KERAS_3 | changes, tmp_path)
    with ForkedCluster(path, dict(jobs), protocol, environment=ENVIRONMENT) as cluster:
        code = cluster.wait([next(iter(cluster.tasks))])
        first = next(iter(cluster.tasks.values()))
        first.end()
    assert code == 1
    assert any(re.search(error, line) for line in first.lines), "\n".join(first.lines)
