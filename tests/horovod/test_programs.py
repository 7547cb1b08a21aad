"""Programs written for Horovod, each on several ranks; one process is the oracle."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.horovod.jobs import ENVIRONMENT, run, started
from tests.support.deadlines import patient


def test_keras_3() -> None:
    assert "runs without XLA" in run("keras3")


def test_options_with_keras_3() -> None:
    run("keras3_options")


@pytest.mark.parametrize("kind", ["new", "legacy"])
def test_tf_keras(kind: str) -> None:
    run("keras2", TF_USE_LEGACY_KERAS="1", KIND=kind)


def test_version_1_sessions() -> None:
    run("sessions")


def test_gradient_schemes() -> None:
    run("gradient_schemes", ranks=3)


@pytest.mark.parametrize("scheme", ["factors", "bf16"])
def test_sessions_that_send_gradients_otherwise(scheme: str) -> None:
    """The gradients are of float64, which is not sent in fewer bits."""
    run("sessions", RDMA_TRANSPORT_GRADIENTS=scheme)


def test_operations() -> None:
    run("operations", ranks=3)


def test_habits() -> None:
    run("habits")


@pytest.mark.parametrize(("side", "dispatchers"), [("compute", 1), ("training", 2)])
def test_a_data_service_of_another_job(side: str, dispatchers: int, tmp_path: Path) -> None:
    file = str(tmp_path / "service")
    worker = ["-m", "horovod.tensorflow.data.compute_worker", "--dispatcher-side", side]
    with started(*worker, "--dispatchers", str(dispatchers), file) as service:
        run("data_service", SERVICE=file)
        assert service.wait(patient(60)) == 0


def test_a_process_that_may_not_be_meant_to_be_alone_is_warned() -> None:
    names = ("RANK", "WORLD_SIZE", "OMPI_", "PMI", "SLURM_", "HOROVOD_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    script = "import rdma_transport.horovod as hvd; hvd.init(); print(hvd.size(), hvd.local_rank())"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | ENVIRONMENT | {"RANK": "1"},
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=True,
    )
    assert ran.stdout == "1 0\n"
    assert "this process trains alone, as rank 0 of 1: " in ran.stderr
    assert "WORLD_SIZE" in ran.stderr
