"""Runs a script as every task of a cluster on this host, each in its own process with a TF_CONFIG.

usage: python -m examples.launch [--protocol grpc|rdma] [--job ps=1 --job worker=2] SCRIPT [ARGS]
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.support.cluster import free_port
from bench.support.python import Process
from rdma_transport.command_line import invoke, make_app

TAIL_LINES = 40
GRACE_SECONDS = 10.0  # for the others, once a task failed: many would wait for it forever
NOTE_SECONDS = 5.0  # after the task whose output is shown has ended, until those that run are named
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_writing = threading.Lock()
app = make_app("")


class Task:
    """A task's process and, unless it writes to the launcher's own output, its last `lines`.

    `plain`: what it writes is shown as it is. `verbose`: all is shown, by whole lines.
    """

    def __init__(
        self, name: str, command: list[str], environment: dict[str, str], plain: bool, verbose: bool
    ) -> None:
        self.name = name
        self.lines: deque[str] = deque(maxlen=1000)
        self.verbose = verbose
        self.prefix = "" if plain else f"[{name}] "
        # Beside others' lines its own would be written in pieces, between which theirs fit.
        self.process = self.begin(command, environment, plain and not verbose)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def begin(self, command: list[str], environment: dict[str, str], plain: bool) -> Process:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=None if plain else subprocess.PIPE,
            stderr=None if plain else subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            process_group=0,  # Ctrl-C is for the launcher, which ends its tasks
        )

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line.rstrip("\n"))
            if self.verbose:
                with _writing:
                    print(self.prefix + line, end="", flush=True)

    @property
    def code(self) -> int | None:
        """The exit code as a shell has it, None while the process runs."""
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def end(self) -> None:
        """Kill the process if it still runs, and have all its `lines`."""
        self.process.kill()
        self.process.wait()
        self.reader.join(2)


def job_of(name: str) -> str:
    """Return "worker" of "worker:0"."""
    return name.partition(":")[0]


class LocalCluster:
    """The tasks by their names ("worker:0"); a context, which kills those that still run.

    To be made in a thread that lives as long as the tasks shall: they die with it.
    """

    task_type = Task

    def __init__(
        self,
        script: str | Path,
        jobs: dict[str, int],
        protocol: str = "rdma",
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        plain: str = "",
        verbose: bool = False,
    ) -> None:
        self.command = [sys.executable, str(script), *arguments]
        self.environment = os.environ | {"PYTHONUNBUFFERED": "1"} | (environment or {})
        self.protocol, self.plain, self.verbose = protocol, plain, verbose
        self.spec = {
            job: [f"127.0.0.1:{free_port()}" for _ in range(count)] for job, count in jobs.items()
        }
        self.tasks: dict[str, Task] = {}
        for job, count in jobs.items():
            for index in range(count):
                self.start(job, index)

    def start(self, job: str, index: int) -> Task:
        """Start a task, which may have run before."""
        name = f"{job}:{index}"
        config = {
            "cluster": self.spec,
            "task": {"type": job, "index": index},
            "rpc_layer": self.protocol,
        }
        environment = self.environment | {"TF_CONFIG": json.dumps(config)}
        task = self.task_type(name, self.command, environment, name == self.plain, self.verbose)
        self.tasks[name] = task
        return task

    def failed(self) -> list[Task]:
        return [task for task in self.tasks.values() if task.code]

    def wait(self, until: Collection[str] = ()) -> int:
        """Wait for the tasks or jobs `until`; return the first bad code.

        By default it waits for all but those that serve: job "ps" and, if there is a chief
        as well, the workers. Once a task failed, the others have 10 seconds.
        """
        serving = {"ps", "worker"} if {"ps", "chief"} <= set(self.spec) else {"ps"}
        awaited = [
            task
            for name, task in self.tasks.items()
            if {name, job_of(name)} & set(until) or (not until and job_of(name) not in serving)
        ]
        code, deadline, note = 0, float("inf"), float("inf")
        shown = self.tasks.get(self.plain)
        while True:
            running = [task.name for task in awaited if task.code is None]
            ended = not running
            if note == float("inf") and shown is not None and shown.code == 0:
                note = time.monotonic() + NOTE_SECONDS
            if running and shown is not None and time.monotonic() > note:
                print(
                    f"note: {shown.name} has ended, and {', '.join(running)} still run. "
                    f"If they only serve it: --until {shown.name}",
                    file=sys.stderr,
                    flush=True,
                )
                shown = None
            if not code and (failed := self.failed()):
                code = failed[0].code or 0
                deadline = time.monotonic() + GRACE_SECONDS
            if ended or time.monotonic() > deadline:
                return code
            time.sleep(0.02)

    def end(self) -> None:
        for task in self.tasks.values():
            task.process.kill()
        for task in self.tasks.values():
            task.end()

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def parsed(jobs: list[str]) -> dict[str, int]:
    """{"ps": 1} of ["ps=1"]."""
    counts = {}
    for text in jobs:
        job, _, count = text.partition("=")
        if not job or not count.isdigit() or int(count) == 0:
            raise typer.BadParameter(
                f"{text!r} is not JOB=NUMBER, such as worker=2", param_hint="--job"
            )
        counts[job] = int(count)
    return counts


@app.command(
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    epilog="",
)
def launch(
    script: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="Run this Python script.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Pass these arguments to the script.")
    ] = None,
    protocol: Annotated[str, typer.Option(help='Set "rpc_layer" in TF_CONFIG.')] = "rdma",
    job: Annotated[
        list[str] | None,
        typer.Option(
            help="Add a job with a number of tasks; repeatable.  [default: ps=1, worker=2]"
        ),
    ] = None,
    until: Annotated[
        list[str] | None,
        typer.Option(
            help="Wait for this job or task (worker:0); repeatable.  [default: all but ps, "
            "and with a chief and ps not for workers either]"
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option(help="Print the output of all tasks, with their names.")
    ] = False,
) -> None:
    """Run SCRIPT as every task of a cluster on this host; print the output of the first worker.

    If a task fails, exit with its exit code, and print its last lines.
    """
    jobs = parsed(job or ["ps=1", "worker=2"])
    first = next((name for name in ("chief", "worker") if name in jobs), next(iter(jobs)))
    with LocalCluster(
        script, jobs, protocol, arguments or [], plain=f"{first}:0", verbose=verbose
    ) as cluster:
        if unknown := set(until or ()) - {*cluster.spec, *cluster.tasks}:
            raise typer.BadParameter(f"no such task: {min(unknown)}", param_hint="--until")
        code = cluster.wait(until or ())
        failed = cluster.failed()
    for task in failed:
        print(f"error: {task.name} exited with code {task.code}", file=sys.stderr)
        if not verbose:
            for line in list(task.lines)[-TAIL_LINES:]:
                print(f"[{task.name}] {line}", file=sys.stderr)
    raise typer.Exit(code)


if __name__ == "__main__":
    sys.exit(invoke(app))
