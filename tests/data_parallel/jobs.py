"""Runs scripts as users do: in one process, and by ``rdma-transport run --data-parallel``."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.support import forked
from tests.support.deadlines import patient

SCRIPTS = Path(__file__).parent / "scripts"
_SEVERAL = Path(__file__).with_name("several.py")
# As `rdma-transport`, but seeds follow from the name of the job, so all jobs get the same ones.
_COMMAND = (
    "import secrets; secrets.token_hex = lambda size: '5e' * size; "
    "from rdma_transport.cli import main; main()"
)
_SECONDS = 100  # and for each script
_SECONDS_OF_SCRIPT = 15


@dataclass(frozen=True)
class Ran:
    """How a script ended."""

    code: int
    text: str
    """What all ranks printed."""
    folder: Path
    """What it wrote is in the folder "files" there."""

    @property
    def arrays(self) -> list[dict[str, np.ndarray]]:
        """What each rank saved; those that saved nothing are missing."""
        return [dict(np.load(path)) for path in sorted(self.folder.glob("*.npz"))]


def _environment(folder: Path) -> dict[str, str]:
    (folder / "files").mkdir(parents=True)
    names = ("RANK", "WORLD_SIZE", "TF_USE_LEGACY_KERAS")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    own = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return kept | own | {"RESULTS": str(folder), "FOLDER": str(folder / "files")}


def _words(name: str) -> list[str]:
    """Return how Python is told to run a script, or a program of a package with its argument."""
    return ["-m", name, "6"] if "." in name else [str(SCRIPTS / f"{name}.py")]


def alone(name: str, folder: Path, **variables: str) -> Ran:
    """Run a script in one process that knows nothing of this project."""
    ran = forked.run(
        _words(name),
        _environment(folder) | {"PYTHONHASHSEED": "0"} | variables,
        timeout=_SECONDS,
        directory=SCRIPTS,
        modules=("tensorflow", "keras"),
    )
    return Ran(ran.returncode, ran.stdout + ran.stderr, folder)


def together(
    name: str, folder: Path, ranks: int = 2, options: Sequence[str] = (), **variables: str
) -> Ran:
    """Run a script on some ranks; on one, which only gets the same seeds."""
    return _launched(_words(name), folder, ranks, options, _SECONDS, variables)


def several(names: Sequence[str], folder: Path, ranks: int = 2) -> dict[str, Ran]:
    """Run scripts one after another in one job, which goes on if one fails."""
    words = [str(_SEVERAL), str(folder), *names]
    seconds = _SECONDS + _SECONDS_OF_SCRIPT * len(names)
    ran = _launched(words, folder, ranks, (), seconds, {})
    return {name: _one_of(ran, folder / name) for name in names}


def _one_of(ran: Ran, folder: Path) -> Ran:
    """Return how a script of several ended; as the job did if that ended before."""
    codes = [int(path.read_text()) for path in folder.glob("*.code")]
    texts = [path.read_text() for path in sorted(folder.glob("*.text"))]
    return Ran(max(codes, key=abs), "\n".join(texts), folder) if codes else ran


def _launched(
    words: Sequence[str],
    folder: Path,
    ranks: int,
    options: Sequence[str],
    seconds: float,
    variables: dict[str, str],
) -> Ran:
    command = [sys.executable, "-c", _COMMAND, "run", "--data-parallel", "-n", str(ranks)]
    ran = subprocess.run(
        [*command, *options, "--", sys.executable, *words],
        env=_environment(folder) | variables,
        cwd=SCRIPTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=patient(seconds),
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, folder)


def difference(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> tuple[float, str]:
    """Return how much arrays differ at most, relative to the largest value of each, and which."""
    assert first.keys() == second.keys()
    worst = 0.0, "none"
    for name, expected in first.items():
        found = second[name]
        assert found.shape == expected.shape, (name, found.shape, expected.shape)
        if expected.size == 0:
            continue
        assert np.isfinite(np.concatenate([expected.ravel(), found.ravel()])).all(), name
        scale = max(float(np.abs(expected).max()), 1e-3)
        worst = max(worst, (float(np.abs(expected - found).max()) / scale, name))
    return worst
