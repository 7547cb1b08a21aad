"""How this interpreter is started as a process that is talked to by lines."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol


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
        [sys.executable, *arguments],
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
    """Start one, in a process group of its own, with `environment` added to this process's."""
    surroundings = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | dict(environment or {})
    return starter(arguments, surroundings, stderr, file_size_limit)
