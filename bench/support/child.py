"""A Python process that answers each line it is given with a line of JSON."""

import json
import os
import select
import signal
import tempfile
from typing import Any

from .hosts import HERE, Place


class Child:
    """Signals go to `pid`; `tell()`, `say()` and `read()` talk to it; its standard error is kept.

    An answer may take `patience` seconds.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        environment: dict[str, str] | None = None,
        file_size_limit: int | None = None,
        patience: float = 30,
        place: Place = HERE,
    ) -> None:
        self.name, self.patience = name, patience
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = place.start(arguments, environment, self.log, file_size_limit)

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise EOFError(f"{self.name} ended\n{self.logged()}") from None

    def say(self, command: Any) -> None:
        self.tell(json.dumps(command))

    def read(self, seconds: float | None = None) -> Any:
        """Return the next answer; raise with the child's log if none comes."""
        assert self.process.stdout is not None
        wait = self.patience if seconds is None else seconds
        if not select.select([self.process.stdout], [], [], wait)[0]:
            raise TimeoutError(f"{self.name} did not answer within {wait:g} s\n{self.logged()}")
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"{self.name} ended\n{self.logged()}")
        return json.loads(line)

    def logged(self) -> str:
        self.log.flush()
        with open(f"/proc/self/fd/{self.log.fileno()}") as again:
            return again.read()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                pipe.close()
