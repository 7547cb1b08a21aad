"""Runs the cases of a program in each process, and writes what they return."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.keras import DataParallel, set_distribution

CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Add a case."""
    CASES[function.__name__] = function
    return function


def clear() -> None:
    """Forget the cases of a program from which another takes functions."""
    CASES.clear()


def folder_of(name: str) -> Path:
    """Return a folder that the ranks share."""
    found = Path(sys.argv[1], name)
    found.mkdir(exist_ok=True)
    return found


def run() -> None:
    """Run all cases, or those that are named; write results into a folder, by rank."""
    folder, *names = sys.argv[1:]
    if os.environ.get("RANKS", "1") != "1":
        set_distribution(DataParallel())
    rank = rt.world().rank if os.environ.get("RANKS", "1") != "1" else 0
    for name in names or CASES:
        tf.keras.utils.set_random_seed(7)
        try:
            found = [np.asarray(each, "float64") for each in CASES[name]()]
        except Exception:
            Path(folder, f"{name}.{rank}.error").write_text(traceback.format_exc())
            if os.environ.get("RANKS", "1") == "1":
                raise
        else:
            np.savez(Path(folder, f"{name}.{rank}.npz"), *found)
            print(name, flush=True)
