"""What the kernel says of this process's surroundings: control groups, limits, devices, memory."""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NO_LIMIT = 2**60
"""Control groups of version 1 write such a number where they limit nothing."""


@dataclass(frozen=True)
class Surroundings:
    """Reads below ``root``; a file that is not there, or cannot be read, is an empty text."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        """Return a file's text without the space around it."""
        try:
            return (self.root / path.lstrip("/")).read_text().strip()
        except (OSError, UnicodeDecodeError):  # holes in GID tables are EINVAL
            return ""

    def number(self, path: str) -> int | None:
        """Return the number in a file; ``None`` for ``max``, and where there is none."""
        text = self.text(path)
        return int(text) if text.isdigit() else None

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; none where it is not there."""
        try:
            return sorted(os.listdir(self.root / path.lstrip("/")))
        except OSError:
            return []

    def meminfo(self, field: str) -> int:
        """Return a line of /proc/meminfo in bytes; 0 where there is none."""
        for line in self.text("/proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name == field:
                return int(rest.split()[0]) * 1024
        return 0

    def memory_limit(self) -> tuple[int, str] | None:
        """The tightest limit on memory of this process's control groups, and its file."""
        return self._tightest("memory", "memory.max", "memory.limit_in_bytes")

    def task_limit(self) -> tuple[int, str] | None:
        """The tightest limit on threads and processes of the control groups, and its file."""
        return self._tightest("pids", "pids.max", "pids.max")

    def _tightest(self, controller: str, unified: str, legacy: str) -> tuple[int, str] | None:
        found = [
            (value, file)
            for directory in self._groups(controller)
            for file in (f"{directory}/{unified}", f"{directory}/{legacy}")
            if (value := self.number(file)) is not None and value < NO_LIMIT
        ]
        return min(found, default=None)

    def _groups(self, controller: str) -> Iterator[str]:
        """This process's control group, and those that it lies in."""
        for line in self.text("/proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            mount = f"/sys/fs/cgroup/{controller}" if controllers else "/sys/fs/cgroup"
            parts = [part for part in path.split("/") if part]
            for length in range(len(parts), -1, -1):
                yield "/".join([mount, *parts[:length]])

    def container(self) -> str:
        """``docker``, ``kubernetes``, ``slurm`` or nothing: where this process seems to run."""
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            return "kubernetes"
        if (self.root / ".dockerenv").exists() or (self.root / "run/.containerenv").exists():
            return "docker"
        return "slurm" if "SLURM_JOB_ID" in os.environ else ""


def soft_limit(kind: int) -> int | None:
    """This process's limit of one of ``resource.RLIMIT_*``; ``None``: there is none."""
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit
