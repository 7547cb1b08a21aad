"""Runs scripts of tests as jobs of ``rdma-transport run --horovod``."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.deadlines import patient

SCRIPTS = Path(__file__).parent / "scripts"
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "0"}


def _command(ranks: int, *program: str) -> list[str]:
    launcher = ["-m", "rdma_transport", "run", "--horovod", "-n", str(ranks), "--"]
    return [sys.executable, *launcher, sys.executable, *program]


def run(name: str, ranks: int = 2, code: int = 0, **variables: str) -> str:
    """Run a script on some ranks; return what they print. All must print "done" if `code` is 0."""
    ran = subprocess.run(
        _command(ranks, str(SCRIPTS / f"{name}.py")),
        env=os.environ | ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        timeout=patient(90),
        check=False,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    done = [f"[{rank}] done" for rank in range(ranks if code == 0 else 0)]
    assert sorted(line for line in ran.stdout.splitlines() if line.endswith(" done")) == done
    return ran.stdout + ran.stderr


@contextlib.contextmanager
def started(*program: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program of Python on two ranks; end it if it has not ended."""
    job = subprocess.Popen(_command(2, *program), env=os.environ | ENVIRONMENT)
    try:
        yield job
    finally:
        job.terminate()
        job.wait(patient(30))
