"""Runs scripts of tests as jobs of ``rdma-transport run --horovod``."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.deadlines import patient

SCRIPTS = Path(__file__).parent / "scripts"
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "0"}


def run(name: str, ranks: int = 2, code: int = 0, **variables: str) -> str:
    """Run a script on some ranks; return what they print. All must print "done" if `code` is 0."""
    command = [sys.executable, "-m", "rdma_transport", "run", "--horovod", "-n", str(ranks), "--"]
    ran = subprocess.run(
        [*command, sys.executable, str(SCRIPTS / f"{name}.py")],
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
