"""What a check finds."""

from dataclasses import asdict, dataclass, field
from typing import Any

PASS, WARN, FAIL, SKIP = "PASS", "WARN", "FAIL", "SKIP"
STATUSES = (PASS, WARN, FAIL, SKIP)
"""WARN: tasks run, but slower, or with less room than they may need. FAIL: what was asked for, or
what this host could do, does not work. SKIP: there was nothing to check, and `found` says why."""

PLACES = ("shell", "systemd", "docker", "kubernetes", "slurm")
"""Where a line of `mend` goes, in the order in which they are shown."""


@dataclass(frozen=True)
class Result:
    """One check's answer: a sentence each, and for every place a line that mends it there."""

    name: str
    status: str
    found: str
    why: str = ""
    mend: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON values, as in ``schema.json``."""
        return asdict(self)


def setting(name: str, value: str) -> dict[str, str]:
    """The lines that give a task a setting, named without its prefix."""
    return variable(f"RDMA_TRANSPORT_{name}", value)


def variable(name: str, value: str) -> dict[str, str]:
    """The lines that give a task an environment variable."""
    return {
        "shell": f"export {name}={value}",
        "systemd": f"Environment={name}={value}",
        "docker": f"docker run -e {name}={value} ...",
        "kubernetes": f'env: [{{name: {name}, value: "{value}"}}] in the container',
        "slurm": f"srun --export=ALL,{name}={value} ...",
    }
