"""Python processes that begin with modules already imported, which saves seconds for each.

They are forked from a `preloader.py`, of which there is one for each set of modules and of
variables that matter while these are imported. Nothing else of a new process is missing.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.support.deadlines import patient
from tests.support.preloader import INT

PRELOADER = Path(__file__).with_name("preloader.py")
TENSORFLOW = ("tensorflow",)
KERAS_2 = ("tensorflow", "tf_keras")
# What is looked at during an import. TF_CONFIG is not.
AT_IMPORT = ("TF_", "KERAS_", "CUDA_", "LD_", "PYTHON", "RDMA_TRANSPORT_DISABLE")
# A library's threads would not survive the fork.
SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
START_SECONDS = 60


class _Preloader:
    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self.process = subprocess.Popen(
                [sys.executable, str(PRELOADER), str(other.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                env={**environment, **SINGLE_THREADED},
                pass_fds=[other.fileno()],
                process_group=0,  # Ctrl-C is for the tests, which end what they started
            )

    def ask(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        try:
            socket.send_fds(self.control, [json.dumps(request).encode()], descriptors)
        except BrokenPipeError:
            raise self.died() from None

    def died(self) -> RuntimeError:
        code = self.process.wait(START_SECONDS)
        self.log.seek(0)
        return RuntimeError(f"the preloader ended with code {code}\n{self.log.read()}")

    def end(self) -> None:
        self.control.close()
        self.process.wait()
        self.log.close()


_preloaders: dict[tuple[Any, ...], _Preloader] = {}


def _preloader(modules: Sequence[str], environment: Mapping[str, str]) -> _Preloader:
    """The one for these; started when it is first needed."""
    matters = {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(AT_IMPORT) and name != "TF_CONFIG"
    }
    key = (*modules, *matters.items())
    if key not in _preloaders:
        _preloaders[key] = made = _Preloader(modules, environment)
        atexit.register(made.end)
    return _preloaders[key]


class Process:
    """As a text `subprocess.Popen` of this interpreter with `arguments`, in a group of its own.

    `stdin` and `stdout` may be `subprocess.PIPE`, `stderr` `subprocess.STDOUT`; what is None is
    /dev/null. `network` is the path of a network namespace to run in.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        directory: str | Path = ".",
        file_size_limit: int | None = None,
        network: str | None = None,
        modules: Sequence[str] = TENSORFLOW,
    ) -> None:
        self.args = [sys.executable, *arguments]
        self.returncode: int | None = None
        self.stdin = self.stdout = None
        self._preloader = _preloader(modules, environment)
        with contextlib.ExitStack() as theirs:

            def pipe(mine_mode: str) -> tuple[IO[Any], int]:
                reading, writing = os.pipe()
                mine, other = (reading, writing) if "r" in mine_mode else (writing, reading)
                theirs.callback(os.close, other)
                return open(mine, mine_mode, 0 if "b" in mine_mode else -1), other

            if stdin == subprocess.PIPE:
                self.stdin, stdin = pipe("w")
            if stdout == subprocess.PIPE:
                self.stdout, stdout = pipe("r")
            self._news, news = pipe("rb")
            null = theirs.enter_context(open(os.devnull, "r+"))
            if stderr == subprocess.STDOUT:
                stderr = stdout
            standard = [null if stream is None else stream for stream in (stdin, stdout, stderr)]
            request = {
                "arguments": list(arguments),
                "environment": dict(environment),
                "directory": str(Path(directory).absolute()),
                "file_size_limit": file_size_limit,
                "network": network,
            }
            self._preloader.ask(
                request, [s if isinstance(s, int) else s.fileno() for s in (*standard, news)]
            )
        self.pid = self._read()

    def _read(self) -> int:
        number = self._news.read(INT.size)
        if len(number) < INT.size:
            raise self._preloader.died()
        return INT.unpack(number)[0]

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._read()
            self._news.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    stderr: IO[str],
    file_size_limit: int | None,
    network: str | None = None,
) -> Process:
    """As `bench.support.python` starts its own."""
    return Process(
        arguments,
        environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        file_size_limit=file_size_limit,
        network=network,
    )


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    *,
    timeout: float,
    directory: str | Path = ".",
    modules: Sequence[str] = TENSORFLOW,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of this interpreter with `arguments`, capturing what it writes."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = Process(
            arguments,
            environment,
            stdout=stdout,
            stderr=stderr,
            directory=directory,
            modules=modules,
        )
        try:
            code = process.wait(patient(timeout))
        finally:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(process.args, code, stdout.read(), stderr.read())
