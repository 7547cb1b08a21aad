"""A Python process that answers each line it is given with a line of JSON."""

import json
import os
import select
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from .hosts import HERE, Place

READ_BYTES = 2**16


class Child:
    """Send it commands with `tell()` and `say()`, and read its answers. Keeps its standard error.

    An answer may take `timeout` seconds.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        environment: dict[str, str] | None = None,
        file_size_limit: int | None = None,
        timeout: float = 60,
        place: Place = HERE,
    ) -> None:
        self.name, self.timeout = name, timeout
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = place.start(arguments, environment, self.log, file_size_limit)
        self._unread = b""  # an answer may arrive together with the next one

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self.process.pid

    @property
    def pss_mib(self) -> float:
        """The memory of the process in MiB; of a page that n processes share, one n-th."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
        raise ValueError(f"/proc/{self.pid}/smaps_rollup has no Pss")

    def tell(self, line: str) -> None:
        """Send a line; raise EOFError, with its log, if it has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise EOFError(f"{self.name} ended\n{self.logged()}") from None

    def say(self, command: Any) -> None:
        """Send a command as JSON; raise EOFError if it has ended."""
        self.tell(json.dumps(command))

    def read(self, seconds: float | None = None) -> Any:
        """Return the next answer; raise with the child's log if none comes."""
        assert self.process.stdout is not None
        wait = self.timeout if seconds is None else seconds
        deadline = time.monotonic() + wait
        while b"\n" not in self._unread:
            left = max(deadline - time.monotonic(), 0)
            if not select.select([self.process.stdout], [], [], left)[0]:
                raise TimeoutError(f"{self.name} did not answer within {wait:g} s\n{self.logged()}")
            part = os.read(self.process.stdout.fileno(), READ_BYTES)
            if not part:
                raise EOFError(f"{self.name} ended\n{self.logged()}")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def logged(self) -> str:
        """Return its log."""
        self.log.flush()
        with open(f"/proc/self/fd/{self.log.fileno()}") as again:
            return again.read()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it if it runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                pipe.close()
