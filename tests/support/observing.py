"""The command ``rdma-transport`` as a person or a program runs it, and a job to look at."""

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fcntl import ioctl
from typing import Any

import pyte
import tensorflow as tf

from bench.support.cluster import Cluster
from tests.support import forked
from tests.support.deadlines import patient
from tests.support.graphs import A, B, Graph

MAIN = "from rdma_transport.cli import main; main()"
MODULES = (
    "typer",
    "rdma_transport.observe.exporter",
    "rdma_transport.observe.recording",
    "rdma_transport.observe.table",
)
WIDE = 2**16  # bytes of the tensor that a job sends from a to b


def run(*words: object, seconds: float = 20) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with its output in files."""
    arguments = ["-c", MAIN, *map(str, words)]
    return forked.run(arguments, _environment(), timeout=seconds, modules=MODULES)


def start(*words: object) -> subprocess.Popen[str]:
    """Begin it as a new process, in pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}


class Terminal:
    """The command in a terminal of its own; ``screen()`` is what a person sees."""

    def __init__(
        self,
        words: Sequence[object],
        columns: int = 130,
        lines: int = 40,
        program: str = MAIN,
        terminal: str = "xterm-256color",
    ) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self._mine, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=_environment() | {"TERM": terminal},
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def read(self, seconds: float) -> None:
        """Take in what it writes for so long, or until it ends."""
        deadline = time.monotonic() + patient(seconds)
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self._mine], [], [], left)[0]:
                return
            try:
                part = os.read(self._mine, 1 << 16)
            except OSError:  # it has ended
                return
            self.raw += part
            self._stream.feed(part)

    def wait_for(self, *patterns: str, seconds: float = 15) -> str:
        """The first screen that has all of them; one may be shown while it is half drawn."""
        deadline = time.monotonic() + patient(seconds)
        while lacking := [each for each in patterns if not re.search(each, self.screen())]:
            assert time.monotonic() < deadline, f"no {lacking} in\n{self.screen()}"
            self.read(0.1)
        return self.screen()

    def screen(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def press(self, keys: str) -> None:
        os.write(self._mine, keys.encode())

    def interrupt(self) -> None:
        self.press("\x03")

    def end(self) -> int:
        """Wait for its end."""
        while self.process.poll() is None:
            self.read(0.1)
        self.read(0.2)
        return self.process.returncode

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._mine)


def wide_and_small() -> Any:
    """A tensor of WIDE bytes and one of 4 bytes from a to b, none back."""
    with tf.device(A):
        wide = tf.random.uniform([WIDE // 4], name="wide")
        small = tf.random.uniform([], name="small")
    with tf.device(B):
        return tf.group(tf.square(wide), tf.square(small))


@contextmanager
def repeated(step: Callable[[], object]) -> Iterator[None]:
    """Steps, one after the other, as long as this lasts."""
    stop = threading.Event()

    def steps() -> None:
        while not stop.wait(0.002):
            step()

    running = threading.Thread(target=steps)
    running.start()
    try:
        yield
    finally:
        stop.set()
        running.join()


@contextmanager
def job(cluster: Cluster) -> Iterator[Graph]:
    """Steps of it, as long as this lasts."""
    with Graph(cluster, wide_and_small) as graph:
        for _ in range(5):
            graph.run()
        with repeated(graph.run):
            yield graph
