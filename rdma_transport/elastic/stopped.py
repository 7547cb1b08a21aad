"""Processes that are stopped, by SIGSTOP for example, and do not end: others would wait forever."""

import time
from collections.abc import Sequence
from pathlib import Path

_POLL = 0.1  # seconds


class Watch:
    """Finds processes that have been stopped for `seconds`. Those of a debugger do not count."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: dict[int, float] = {}
        self._looked = 0.0

    def stopped(self, processes: Sequence[int]) -> list[int]:
        """Return those of `processes` to be ended, each one once."""
        now = time.monotonic()
        if now < self._looked + _POLL:
            return []
        self._looked = now
        since = {pid: self._since.get(pid, now) for pid in processes if _is_stopped(pid)}
        found = [pid for pid, at in since.items() if now - at >= self.seconds]
        self._since = {pid: at for pid, at in since.items() if pid not in found}
        return found


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False
