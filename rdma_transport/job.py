"""The processes of a job's ranks on this host: started, watched, ended."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rdma_transport import error_file
from rdma_transport.command_line import INTERRUPTED
from rdma_transport.slurm import Step

_GRACE = 5.0  # seconds, for ranks to end after another one failed, and after each signal
_POLL = 0.02
# Ends the rank if this process dies, keeps it to processors, then becomes the user's command.
_STARTER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
os.execvp(sys.argv[2], sys.argv[2:])
"""
# At the end of what a rank prints that fails only because another one ended before.
_SECONDARY = re.compile(r"\brank \d+ is gone\b")
# What TensorFlow logs when all is well.
_CHATTER = re.compile(r"I\d{4} |\d{4}-\d\d-\d\d [\d:.]+: I |WARNING: All log messages before absl")
_LINES = 10  # of its errors that are repeated
_LONGEST = 300  # characters of each


@dataclass(frozen=True)
class Failure:
    """How a rank has failed."""

    rank: int
    how: str
    code: int
    """The exit code of a job that it ends."""
    is_cause: bool
    """It is no consequence of others that failed."""
    last: list[str]
    """The last lines of its errors."""

    def report(self, *consequences: str) -> str:
        """Return what is printed of it."""
        lines = ["; ".join([f"error: rank {self.rank} {self.how}", *filter(None, consequences)])]
        if self.last:
            lines += ["the last lines of its errors:", *self.last]
        return "\n".join(lines)


class Job:
    """The processes of this host's ranks, and the threads that copy their output.

    `environments` and `processors` are those of each rank of `starts`. The ranks report errors, and
    that they take part, in files of `folder`. `apart`: what is wrong with a rank that never does,
    unless it is the only one; "": nothing. `quiet`: only rank 0's standard output is shown.
    """

    def __init__(
        self,
        command: list[str],
        starts: list[Step],
        environments: list[dict[str, str]],
        processors: list[list[int]],
        folder: Path,
        apart: str = "",
        quiet: bool = False,
    ) -> None:
        self._command, self._starts, self._environments = command, starts, environments
        self._allowed, self._folder = processors, folder
        self._apart, self._quiet = apart, quiet
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[list[threading.Thread]] = []  # of each process
        self._output = threading.Lock()
        self._last: list[deque[str]] = []  # lines of each process on stderr
        self._failed: list[int] = []  # in the order in which they ended
        self._stopped = 0  # by this signal

    def run(self) -> int:
        """Run all ranks; return the exit code of the job."""
        previous = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            for rank in range(len(self._starts)):
                self._start(rank)
            code = self._wait()
        finally:
            self._end(signal.SIGTERM)
            for number, handler in previous.items():
                signal.signal(number, handler)
        for local in range(len(self._starts)):
            self._read_all(local, _GRACE)
        if self._stopped:
            return INTERRUPTED if self._stopped == signal.SIGINT else 128 + self._stopped
        return code

    def _stop(self, number: int, _: Any) -> None:
        self._stopped = number

    def _start(self, local: int) -> None:
        own = {error_file.VARIABLE: str(self._error_file(local))}
        if self._apart:
            own[error_file.PART_VARIABLE] = str(self._part_file(local))
        allowed = ",".join(map(str, self._allowed[local]))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _STARTER, allowed, *self._command],
            env=self._environments[local] | own,
            stdin=None if self._starts[local].rank == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C comes from here only
        )
        self._processes.append(process)
        self._last.append(deque(maxlen=_LINES))
        threads = [
            threading.Thread(target=self._copy, args=(local, source, target), daemon=True)
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        ]
        self._threads.append(threads)
        for thread in threads:
            thread.start()

    def _error_file(self, local: int) -> Path:
        return self._folder / f"error_{local}.json"

    def _part_file(self, local: int) -> Path:
        return self._folder / f"part_{local}"

    def _copy(self, local: int, source: IO[bytes], target: IO[str]) -> None:
        """Copy lines, each behind the rank. Of a line that is redrawn, only the last state."""
        rank = self._starts[local].rank
        prefix, quiet = f"[{rank}] ", self._quiet and target is sys.stdout
        with source:
            for line in source:
                text = line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
                if target is sys.stderr and text.strip() and not _CHATTER.match(text):
                    self._last[local].append(text.rstrip()[:_LONGEST])
                if quiet and not self._is_first(local):
                    continue
                with self._output, contextlib.suppress(OSError, ValueError):
                    target.write(f"{prefix}{text}\n")
                    target.flush()

    def _is_first(self, local: int) -> bool:
        """Return whether a process is rank 0 now."""
        return self._starts[local].rank == 0

    def _read_all(self, local: int, seconds: float) -> None:
        """Wait until a rank that has ended is read to the end; a grandchild may hold the pipe."""
        for thread in self._threads[local]:
            thread.join(seconds)

    def _wait(self) -> int:
        """Wait until all ranks have ended; after the first failure, end the others."""
        while not self._stopped:
            ended = self._look()
            if self._failed:
                # The others usually find out, and report it themselves.
                deadline = time.monotonic() + _GRACE
                while not self._look() and self._told() is None:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(_POLL)
                return self._report(self._first())
            if ended:
                return 0
            time.sleep(_POLL)
        self._end(signal.Signals(self._stopped))
        return 128 + self._stopped

    def _look(self) -> bool:
        """Note which ranks have failed since the last call; return whether all have ended."""
        codes = [process.poll() for process in self._processes]
        for local, code in enumerate(codes):
            if code is None or local in self._failed:
                continue
            if code or self._error_file(local).exists() or self._stays_apart(local):
                self._failed.append(local)
        return None not in codes

    def _stays_apart(self, local: int) -> bool:
        alone = self._starts[0].size == 1
        return bool(self._apart) and not alone and not self._part_file(local).exists()

    def _told(self) -> int | None:
        """Return the first rank whose failure is known to be no consequence of others."""
        return next(
            (
                local
                for local in self._failed
                if self._error_file(local).exists() or not self._processes[local].returncode
            ),
            None,
        )

    def _first(self) -> int:
        """Return the rank that failed first."""
        local = self._told()
        if local is None:
            local = next(filter(self._failed_by_itself, self._failed), self._failed[0])
        return local

    def _report(self, local: int) -> int:
        """Print which rank failed, and that this ends the job; return its exit code."""
        failure = self._failure(local, 1)
        whole = self._starts[0].local_size == self._starts[0].size
        others = "the other ranks" if whole else "this host's other ranks"
        ended = f"ended {others}" if len(self._starts) > 1 else ""
        with self._output:
            print(failure.report(ended), file=sys.stderr)
        return failure.code

    def _failure(self, local: int, seconds: float) -> "Failure":
        """Return how a rank has failed; it may take so long to read what it printed."""
        code: int = self._processes[local].returncode
        reported = error_file.message_in(self._error_file(local))
        how = reported or self._how(local)
        if not reported and code == 0:
            code = 1
        self._read_all(local, seconds)
        return Failure(
            self._starts[local].rank,
            how,
            code if code >= 0 else 128 - code,
            self._error_file(local).exists() or self._failed_by_itself(local, seconds),
            list(self._last[local]),
        )

    def _how(self, local: int) -> str:
        """Return how a rank that failed has ended."""
        code = self._processes[local].returncode
        if code == 0:
            return self._apart
        return f"exited with code {code}" if code > 0 else f"ended by signal {-code}"

    def _failed_by_itself(self, local: int, seconds: float = 1) -> bool:
        self._read_all(local, seconds)
        return not any(map(_SECONDARY.search, self._last[local]))

    def _wait_for_end(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for process in self._processes):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def _end(self, first: signal.Signals) -> None:
        """End all ranks and their children, with increasing force."""
        for number in dict.fromkeys((first, signal.SIGTERM, signal.SIGKILL)):
            if all(process.poll() is not None for process in self._processes):
                return
            for process in self._processes:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
            self._wait_for_end(_GRACE)
