"""What the kernel reports about this system: control groups, limits, devices, memory."""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NO_LIMIT = 2**60
"""Version 1 control groups report a larger number if there is no limit."""


@dataclass(frozen=True)
class System:
    """Reads files below ``root``. A missing or unreadable file reads as an empty string."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        """Return the text of a file, stripped."""
        try:
            return (self.root / path.lstrip("/")).read_text().strip()
        except (OSError, UnicodeDecodeError):  # holes in GID tables are EINVAL
            return ""

    def number(self, path: str) -> int | None:
        """Return the number in a file; ``None`` for ``max`` or without a number."""
        text = self.text(path)
        return int(text) if text.isdigit() else None

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if it does not exist."""
        try:
            return sorted(os.listdir(self.root / path.lstrip("/")))
        except OSError:
            return []

    def meminfo(self, field: str) -> int:
        """Return a field of /proc/meminfo in bytes; 0 if it is missing."""
        for line in self.text("/proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name == field:
                return int(rest.split()[0]) * 1024
        return 0

    def memory_limit(self) -> tuple[int, str] | None:
        """Return the lowest memory limit of this process's control groups, and its file."""
        return self._tightest("memory", "memory.max", "memory.limit_in_bytes")

    def task_limit(self) -> tuple[int, str] | None:
        """Return the lowest limit on threads and processes of the control groups, and its file."""
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
        """Yield the directories of this process's control group and its ancestors."""
        for line in self.text("/proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            mount = f"/sys/fs/cgroup/{controller}" if controllers else "/sys/fs/cgroup"
            parts = [part for part in path.split("/") if part]
            for length in range(len(parts), -1, -1):
                yield "/".join([mount, *parts[:length]])

    def container(self) -> str:
        """Return where this process seems to run: ``docker``, ``kubernetes``, ``slurm`` or ""."""
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            return "kubernetes"
        if (self.root / ".dockerenv").exists() or (self.root / "run/.containerenv").exists():
            return "docker"
        return "slurm" if "SLURM_JOB_ID" in os.environ else ""


def soft_limit(kind: int) -> int | None:
    """Return the soft limit of this process for one ``resource.RLIMIT_*``; ``None``: no limit."""
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit
