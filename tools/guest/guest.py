"""A running guest, as the tests see it."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .channel import Channel
from .image import REPOSITORY

PYTHON = REPOSITORY / ".venv" / "bin" / "python"
GRACE = 30  # seconds for the agent to answer on a busy machine


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str

    def check(self) -> "Result":
        """Raise with the output unless the exit status is 0."""
        if self.returncode != 0:
            raise RuntimeError(f"exit status {self.returncode}\n{self.stdout}{self.stderr}")
        return self


class Process:
    """A process in a guest; signals go to its whole group."""

    def __init__(self, guest: "Guest", argv: Sequence[str], pid: int) -> None:
        self.guest, self.argv, self.pid = guest, argv, pid

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float) -> Result:
        """Wait for its end; raise TimeoutError if it still runs."""
        timeout *= Guest.patience
        returncode = self._wait(timeout)
        stdout, stderr = self.output()
        if returncode is None:
            raise TimeoutError(f"{self} still runs after {timeout} s\n{stdout}{stderr}")
        return Result(returncode, stdout, stderr)

    def wait_for(self, text: str, timeout: float) -> None:
        """Wait until it has printed `text`; programs in C do so late, unless under stdbuf -oL."""
        deadline = time.monotonic() + timeout * Guest.patience
        while not any(text in stream for stream in self.output()):
            if self.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"{self} did not print {text!r}\n{''.join(self.output())}")
            time.sleep(0.1)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.guest.channel.ask("signal", pid=self.pid, signal=number)

    def output(self) -> tuple[str, str]:
        """Stdout and stderr so far."""
        stdout, stderr = self.output_after(0, 0)
        return stdout.decode(errors="replace"), stderr.decode(errors="replace")

    def output_after(self, stdout: int, stderr: int) -> tuple[bytes, bytes]:
        answer = self.guest.channel.ask("output", pid=self.pid, offsets=[stdout, stderr])
        out, err = (stream.encode("latin-1") for stream in answer["output"])
        return out, err

    def __str__(self) -> str:
        return f"{self.guest}: {' '.join(self.argv)}"

    def _wait(self, timeout: float) -> int | None:
        answer = self.guest.channel.ask("wait", timeout + GRACE, pid=self.pid, timeout=timeout)
        returncode: int | None = answer["returncode"]
        return returncode


class Guest:
    """Files under `share` are the same on the host and in all guests of the run."""

    patience = 1.0  # how many times as long as they are told all guests wait, on a slow machine

    def __init__(
        self, number: int, qemu: subprocess.Popen[Any], channel: Channel, share: Path
    ) -> None:
        self.number, self.qemu, self.channel, self.share = number, qemu, channel, share
        self.address, self.address6 = f"10.7.0.{number}", f"fd00:7::{number}"
        self.down: set[int] = set()  # cards
        self.ports = 1

    def start(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] = REPOSITORY,
        stdin: str = "",
        uid: int | None = None,
        memlock: int | None = None,
    ) -> Process:
        """Start a process; `memlock` bytes may be locked, by root too, instead of any number."""
        words = [os.fspath(word) for word in argv]
        limits = []
        if memlock is not None:
            limits = ["prlimit", f"--memlock={memlock}:{memlock}"]
            if not uid:
                limits += ["setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock"]
        answer = self.channel.ask(
            "start",
            argv=limits + words,
            env=dict(env or {}),
            cwd=os.fspath(cwd),
            input=stdin,
            uid=uid,
        )
        return Process(self, words, answer["pid"])

    def run(
        self, argv: Sequence[str | os.PathLike[str]], timeout: float = 60, **options: Any
    ) -> Result:
        """Run a process to its end, with start()'s options; killed after `timeout` seconds."""
        process = self.start(argv, **options)
        try:
            return process.wait(timeout)
        except BaseException:
            if not self.channel.lost:
                process.kill()
            raise

    def python(self, *arguments: str, timeout: float = 60, **options: Any) -> Result:
        """Run the project's Python: a program's text, or arguments such as `-m`, `module`."""
        first = [] if arguments[0].startswith("-") else ["-c"]
        return self.run([PYTHON, *first, *arguments], timeout, **options)

    def link(self, up: bool, card: int = 0) -> None:
        """Take the network card of rxe0, or of rxe1, down or up."""
        state = "up" if up else "down"
        self.run(["ip", "link", "set", f"eth{card}", state]).check()
        self.run(["tools/guest/await_link.sh", f"eth{card}", state]).check()
        (self.down.discard if up else self.down.add)(card)

    def add_port(self) -> None:
        """Make rxe1, on the second network card."""
        self.run(["rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "eth1"]).check()
        self.ports = 2

    def restore(self) -> None:
        """End what tests left behind."""
        self.channel.ask("end")
        for card in sorted(self.down):
            self.link(True, card)
        if self.ports > 1:
            self.run(["rdma", "link", "delete", "rxe1"]).check()
            self.ports = 1

    def __str__(self) -> str:
        return f"guest{self.number}"
