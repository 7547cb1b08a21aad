"""Starts this interpreter as a process that exchanges lines with its parent."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

PACKAGE = __package__.removesuffix(".support")
"""The name of the benchmarks: `bench` in a checkout, `rdma_transport.bench` if installed."""
TOP = Path(str(sys.modules[PACKAGE.partition(".")[0]].__file__)).parent.parent
"""The folder from which a process can import them."""


class Process(Protocol):
    """What is used of a `subprocess.Popen[str]`."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> IO[str] | None: ...
    @property
    def stdout(self) -> IO[str] | None: ...

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


def _fresh(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    stderr: IO[str],
    file_size_limit: int | None,
) -> Process:
    def limit() -> None:
        if file_size_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_limit, file_size_limit))

    return subprocess.Popen(
        [sys.executable, *isolated(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment,
        preexec_fn=limit,
        process_group=0,  # Ctrl-C is for the parent, which ends its tasks after its sessions
    )


Starter = Callable[[Sequence[str], Mapping[str, str], IO[str], int | None], Process]
starter: Starter = _fresh  # another one may start what behaves the same in less time


def start(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None,
    stderr: IO[str],
    file_size_limit: int | None = None,
) -> Process:
    """Start one in a process group of its own. Adds `environment` to that of this process."""
    variables = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | dict(environment or {})
    return starter(arguments, variables, stderr, file_size_limit)


def module(name: str) -> list[str]:
    """Return the arguments that run a module of the benchmarks."""
    return ["-m", f"{PACKAGE}.{name}"]


def isolated(arguments: Sequence[str]) -> list[str]:
    """Keep a program's own folder off its import path, where `python` is not TensorFlow's."""
    return [*(["-P"] if arguments[0] != "-m" else []), *arguments]
