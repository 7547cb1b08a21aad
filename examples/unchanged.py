"""Runs a script of Keras for one process alone and on two ranks, unchanged, and compares.

usage: python -m examples.unchanged
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bench.support.exit import run_command

SCRIPT = Path(__file__).parent / "data_parallel" / "digits.py"
RANKS = 2
_LAUNCHER = [sys.executable, "-m", "rdma_transport", "run", "--data-parallel", "--quiet-ranks"]
_PRINTED = re.compile(r"accuracy ([\d.]+) %, ([\d.]+) steps/s")
_TOLERANCE = 1e-4  # of weights: rounding that 108 steps pass on
_SECONDS = 300


@dataclass(frozen=True)
class Result:
    """What a run of the script printed, and the weights that it saved."""

    accuracy: str
    speed: str
    weights: list[Any]


def run(launcher: list[str], folder: Path) -> Result:
    """Run the script; raise ``RuntimeError`` with what it printed if it fails."""
    file = folder / f"{len(launcher)}.weights.h5"
    given = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    ran = subprocess.run(
        [*launcher, sys.executable, str(SCRIPT), str(file)],
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    found = _PRINTED.search(ran.stdout)
    if ran.returncode or not found:
        raise RuntimeError(f"{SCRIPT.name} failed:\n{ran.stdout}{ran.stderr}")
    return Result(found[1], found[2], _weights(file))


def compare(console: Console) -> bool:
    """Print the table; return whether the weights are equal within rounding."""
    with tempfile.TemporaryDirectory() as name, console.status("one process, two ranks"):
        alone = run([], Path(name))
        shared = run([*_LAUNCHER, "-n", str(RANKS), "--"], Path(name))
    table = Table(title="the same digits: an unchanged script of Keras 3")
    for heading in ("", "one process", f"{RANKS} ranks"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("accuracy", f"{alone.accuracy} %", f"{shared.accuracy} %")
    table.add_row("steps/s *", alone.speed, shared.speed)
    console.print(table)
    console.print(
        f"* one process has all {len(os.sched_getaffinity(0))} processors, which the ranks share: "
        "ranks gain with more processors, more hosts or a larger model"
    )
    most = max(
        float(np.max(np.abs(one - other)))
        for one, other in zip(alone.weights, shared.weights, strict=True)
    )
    equal = most < _TOLERANCE
    words = "equal within rounding" if equal else "[bold red]NOT equal[/]"
    console.print(f"weights after training: {words} (largest difference {most:.0e})")
    return equal


def _weights(file: Path) -> list[Any]:
    import h5py

    found: list[Any] = []
    with h5py.File(file) as opened:
        opened["layers"].visititems(
            lambda _, each: found.append(each[()]) if isinstance(each, h5py.Dataset) else None
        )
    return found


def main() -> None:
    """Train on handwritten digits by a script for one process, alone and on two ranks."""
    if not compare(Console()):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
