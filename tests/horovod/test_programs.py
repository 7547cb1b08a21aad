"""Programs written for Horovod, each on several ranks; one process is the oracle."""

import pytest

from tests.horovod.jobs import run


def test_keras_3() -> None:
    assert "trains without XLA" in run("keras3")


@pytest.mark.parametrize("kind", ["new", "legacy"])
def test_tf_keras(kind: str) -> None:
    run("keras2", TF_USE_LEGACY_KERAS="1", KIND=kind)


def test_version_1_sessions() -> None:
    run("sessions")


def test_operations() -> None:
    run("operations", ranks=3)


def test_habits() -> None:
    run("habits")
