"""The result of a check."""

from dataclasses import asdict, dataclass, field
from typing import Any

PASS, WARN, FAIL, SKIP = "PASS", "WARN", "FAIL", "SKIP"
STATUSES = (PASS, WARN, FAIL, SKIP)
"""WARN: tasks run, but slower, or with less memory than they may need. FAIL: something that was
requested, or that this host supports, does not work. SKIP: nothing to check; `found` says why."""

PLACES = ("shell", "systemd", "docker", "kubernetes", "slurm")
"""The environments that `fix` has lines for, in the order in which they are shown."""


@dataclass(frozen=True)
class Result:
    """The result of one check; `fix` has one line per environment."""

    name: str
    status: str
    found: str
    why: str = ""
    fix: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, as in ``schemas/doctor.json``."""
        return asdict(self)


def setting(name: str, value: str) -> dict[str, str]:
    """Return the lines that set a setting of a task, named without its prefix."""
    return variable(f"RDMA_TRANSPORT_{name}", value)


def variable(name: str, value: str) -> dict[str, str]:
    """Return the lines that set an environment variable of a task."""
    return {
        "shell": f"export {name}={value}",
        "systemd": f"Environment={name}={value}",
        "docker": f"docker run -e {name}={value} ...",
        "kubernetes": f'env: [{{name: {name}, value: "{value}"}}] in the container',
        "slurm": f"srun --export=ALL,{name}={value} ...",
    }
