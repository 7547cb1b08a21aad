"""Launchers of one elastic job, and what their ranks print."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from bench.support.ports import free_port
from tests.support import elastic_member
from tests.support.deadlines import eventually, patient

ROOT = Path(__file__).parents[2]
SETTINGS = {"RDMA_TRANSPORT_PEER_TIMEOUT": "2s"}


class Launcher:
    """``rdma-transport run --elastic``, started by `call` on some host."""

    def __init__(
        self,
        folder: Path,
        name: str,
        options: tuple[str, ...],
        program: tuple[str, ...],
        call: Callable[[Callable[[], subprocess.Popen[bytes]]], subprocess.Popen[bytes]],
        **settings: str,
    ) -> None:
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        command = [sys.executable, "-m", "rdma_transport", "run", "--elastic", *options, "--"]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = call(
                lambda: subprocess.Popen(
                    [*command, *program],
                    env=os.environ | SETTINGS | settings,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
            )

    @property
    def printed(self) -> str:
        return self.out.read_text()

    @property
    def errors(self) -> str:
        return self.err.read_text()

    def await_text(self, pattern: str, seconds: float = 40) -> None:
        found = eventually(lambda: re.search(pattern, self.printed + self.errors), seconds)
        assert found, self.printed[-2000:] + self.errors

    def steps(self) -> dict[int, set[str]]:
        """The bits of ranks after each step; what is cut off is not taken."""
        found: dict[int, set[str]] = {}
        for step, bits in re.findall(r" step (\d+) (\w{64})$", self.printed, re.M):
            found.setdefault(int(step), set()).add(bits)
        return found

    def kill(self) -> None:
        """Kill it and its ranks, as if its host had lost power."""
        family = [psutil.Process(self.process.pid)]
        family += family[0].children(recursive=True)
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)

    def end(self, seconds: float = 60) -> int:
        """Wait for its end; return its exit code."""
        return self.process.wait(patient(seconds))


class Launchers:
    """Starts launchers, and ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, str(free_port())
        self.all: list[Launcher] = []

    def start(
        self,
        *options: str,
        program: tuple[str, ...],
        call: Callable[..., subprocess.Popen[bytes]] = lambda start: start(),
        **settings: str,
    ) -> Launcher:
        name = f"launcher_{len(self.all)}"
        self.all.append(Launcher(self.folder, name, options, program, call, **settings))
        return self.all[-1]

    def check_bits(self) -> int:
        """Check that all ranks had the bits of one process after each step; return how many."""
        steps: dict[int, set[str]] = {}
        for each in self.all:
            for step, bits in each.steps().items():
                steps.setdefault(step, set()).update(bits)
        oracle = elastic_member.expected(max(steps))
        assert steps == {number: {oracle[number - 1]} for number in range(1, len(oracle) + 1)}
        return len(oracle)


@contextlib.contextmanager
def launchers(folder: Path) -> Iterator[Launchers]:
    made = Launchers(folder)
    try:
        yield made
    finally:
        for each in made.all:
            if each.process.poll() is None:
                each.kill()
            each.process.wait()


def member(steps: int, ranks: int) -> tuple[str, ...]:
    """Return the program whose ranks sum."""
    return (sys.executable, elastic_member.__file__, str(steps), str(ranks))
