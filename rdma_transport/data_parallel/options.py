"""What the launcher tells the ranks of ``run --data-parallel``, through their environment."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

_VARIABLE = "_RDMA_TRANSPORT_DATA_PARALLEL"
FOLDER = str(Path(__file__).parent / "as_site")
"""The folder on PYTHONPATH that makes a Python program take part."""
APART = (
    "ended without any reduction: each rank trained alone, if it trained. Ranks share the calls of "
    "Keras models, and functions that rdma_transport.tensorflow.parallel() wraps; check that the "
    "program makes such a call in the process that the launcher starts, and that no option such as "
    "python -I ignores PYTHONPATH"
)
"""What is wrong with a rank that never shares work."""


@dataclass(frozen=True)
class Options:
    """The options of the command."""

    explain: bool = False
    scale_batch: bool = False
    sync_batch_norm: bool = False


def variables(options: Options, job: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return what the ranks of a job have in their environment, besides FOLDER on PYTHONPATH.

    The seed follows from the name of the job, which its hosts know.
    """
    seed = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4])
    added = {_VARIABLE: json.dumps({"seed": seed, **asdict(options)})}
    # Python reads it when it starts; "random" is as none.
    if given.get("PYTHONHASHSEED", "random") in ("", "random"):
        added["PYTHONHASHSEED"] = str(seed)
    return added


def take(folder: str) -> tuple[Options, int] | None:
    """Return the options and the seed in the first Python program of a rank; None in others.

    Takes them and `folder` out of the environment, so that no child finds them.
    """
    paths = os.environ.pop("PYTHONPATH", "").split(os.pathsep)
    if others := [path for path in paths if path and os.path.abspath(path) != folder]:
        os.environ["PYTHONPATH"] = os.pathsep.join(others)
    text = os.environ.pop(_VARIABLE, "")
    if not text:
        return None
    found = json.loads(text)
    return Options(**{name: found[name] for name in asdict(Options())}), found["seed"]
