"""The command ``rdma-transport run``: start the ranks of a job, or be one under srun."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from rdma_transport import error_file
from rdma_transport.command_line import INTERRUPTED
from rdma_transport.errors import BadInputError
from rdma_transport.slurm import Step, find_step, port_of

_GRACE = 5.0  # seconds, for ranks to end after another one failed, and after each signal
_POLL = 0.02
_SECRET = "RDMA_TRANSPORT_SECRET_FILE"
# Ends the rank if this process dies, keeps it to processors, then becomes the user's command.
_STARTER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
os.execvp(sys.argv[2], sys.argv[2:])
"""
# The end of what a rank prints that fails only because another one ended before.
_SECONDARY = re.compile(r"\brank \d+ is gone\b")
_LONGEST = 300  # characters of a line that is repeated


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="Run this command as each rank.")
    ],
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n", "--ranks", min=1, max=1024, help="Start this many ranks here; 2 if not given."
        ),
    ] = None,
    nnodes: Annotated[
        int, typer.Option(help="Run the job on this many hosts, with --ranks on each.", min=1)
    ] = 1,
    node_rank: Annotated[
        int | None, typer.Option(help="With --nnodes, give the number of this host, from 0.", min=0)
    ] = None,
    master_addr: Annotated[
        str, typer.Option(help="With --nnodes, give an address of host 0 that all reach.")
    ] = "",
    master_port: Annotated[
        int, typer.Option(help="With --nnodes, give a free port of host 0.", min=1, max=65535)
    ] = 29500,
    mpi4py: Annotated[
        bool,
        typer.Option("--mpi4py", help="Let 'from mpi4py import MPI' import rdma_transport.mpi."),
    ] = False,
    bind: Annotated[
        bool,
        typer.Option(
            "--bind/--no-bind",
            help="Keep each rank to its share of the processors, if each has one.",
        ),
    ] = True,
) -> None:
    """Start the ranks of a NumPy or mpi4py job on this host.

    The ranks communicate by rdma_transport.collectives.

    Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun
    does, and OMP_NUM_THREADS to this rank's share of the processors unless it is set. Without
    RDMA_TRANSPORT_SECRET_FILE the ranks get a secret of their own. Each line of output starts with
    the rank. If this host has a processor for each of its ranks, each rank is kept to its share of
    them, as mpirun does; --no-bind lets all ranks use all processors.

    If a rank fails, the others of this host are ended, and the command exits with the code of the
    rank whose failure came first (128 + N after signal N). Ctrl-C ends all ranks.

    With --nnodes, run the same command on each host, with its --node-rank. Ranks of different hosts
    authenticate each other only if RDMA_TRANSPORT_SECRET_FILE names the same secret on all.

    Under srun, each task of Slurm is one rank of a job that spans its nodes. The task runs the
    command in place of this one, with the same variables. Then omit --ranks and the options of
    several hosts.
    """
    program = shutil.which(command[0])
    if program is None:
        raise BadInputError(f"there is no program {command[0]}")
    step = find_step()
    if step and step.size > 1:
        given = {
            f"-n {ranks}": ranks is not None,
            f"--nnodes {nnodes}": nnodes > 1,
            f"--node-rank {node_rank}": node_rank is not None,
            f"--master-addr {master_addr}": master_addr != "",
        }
        if any(given.values()):
            raise BadInputError(
                f"srun started {step.size} tasks, and each is one rank: omit "
                f"{' '.join(text for text, is_given in given.items() if is_given)}. To start "
                "the ranks on one node instead, use srun --ntasks=1"
            )
        os.execve(program, command, _environment_of(step, mpi4py))
    place = _place(ranks or 2, nnodes, node_rank, master_addr, master_port)
    with tempfile.TemporaryDirectory(prefix="rdma_transport_") as folder:
        environment = _environment(place, mpi4py, _secret(place, Path(folder)))
        processors = _processors(place.local_size, bind)
        job = Job([program, *command[1:]], place, environment, processors, Path(folder))
        code = job.run()
    raise typer.Exit(code)


@dataclass(frozen=True)
class Place:
    """``local_size`` of the ``size`` ranks, from ``first`` on; all meet at ``host``:``port``."""

    first: int
    local_size: int
    size: int
    host: str
    port: int

    @property
    def alone(self) -> bool:
        """Whether all ranks are on this host."""
        return self.local_size == self.size


def _place(ranks: int, nodes: int, node: int | None, master_addr: str, master_port: int) -> Place:
    if nodes == 1:
        if node:
            raise BadInputError(f"--node-rank {node} needs --nnodes, the number of hosts")
        return Place(0, ranks, ranks, "127.0.0.1", _free_port())
    if node is None or not master_addr:
        raise BadInputError(
            f"--nnodes {nodes} needs --node-rank, the number of this host, and --master-addr, an "
            "address of host 0"
        )
    if node >= nodes:
        raise BadInputError(f"--node-rank {node} of --nnodes {nodes}: the last one is {nodes - 1}")
    return Place(node * ranks, ranks, nodes * ranks, master_addr, master_port)


class Job:
    """The processes of this host's ranks, and the threads that copy their output.

    `processors` has those of each rank. The ranks report errors in files of `folder`.
    """

    def __init__(
        self,
        command: list[str],
        place: Place,
        environment: dict[str, str],
        processors: list[list[int]],
        folder: Path,
    ) -> None:
        self._command, self._place, self._shared = command, place, environment
        self._allowed, self._folder = processors, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[list[threading.Thread]] = []  # of each process
        self._output = threading.Lock()
        self._last = [""] * place.local_size  # line on stderr
        self._failed: list[int] = []  # in the order in which they ended
        self._stopped = 0  # by this signal

    def run(self) -> int:
        """Run all ranks; return the exit code of the job."""
        previous = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            for rank in range(self._place.local_size):
                self._start(rank)
            code = self._wait()
        finally:
            self._end(signal.SIGTERM)
            for number, handler in previous.items():
                signal.signal(number, handler)
        for local in range(self._place.local_size):
            self._read_all(local, _GRACE)
        if self._stopped:
            return INTERRUPTED if self._stopped == signal.SIGINT else 128 + self._stopped
        return code

    def _stop(self, number: int, _: Any) -> None:
        self._stopped = number

    def _start(self, local: int) -> None:
        rank = self._place.first + local
        own = {"RANK": str(rank), "LOCAL_RANK": str(local)}
        own[error_file.VARIABLE] = str(self._error_file(local))
        allowed = ",".join(map(str, self._allowed[local]))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _STARTER, allowed, *self._command],
            env=self._shared | own,
            stdin=None if rank == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C comes from here only
        )
        self._processes.append(process)
        threads = [
            threading.Thread(target=self._copy, args=(local, source, target), daemon=True)
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        ]
        self._threads.append(threads)
        for thread in threads:
            thread.start()

    def _error_file(self, local: int) -> Path:
        return self._folder / f"error_{local}.json"

    def _copy(self, local: int, source: IO[bytes], target: IO[str]) -> None:
        """Copy lines, each behind the rank. Of a line that is redrawn, only the last state."""
        prefix = f"[{self._place.first + local}] "
        for line in source:
            text = line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
            if target is sys.stderr and text.strip():
                self._last[local] = text.strip()
            with self._output, contextlib.suppress(OSError, ValueError):
                target.write(f"{prefix}{text}\n")
                target.flush()

    def _read_all(self, local: int, seconds: float) -> None:
        """Wait until a rank that has ended is read to the end; a grandchild may hold the pipe."""
        for thread in self._threads[local]:
            thread.join(seconds)

    def _wait(self) -> int:
        """Wait until all ranks have ended; after the first failure, end the others."""
        while not self._stopped:
            ended = self._look()
            if self._failed:
                # The others usually find out, and report it themselves.
                deadline = time.monotonic() + _GRACE
                while not self._look() and self._aborted() is None:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(_POLL)
                return self._report()
            if ended:
                return 0
            time.sleep(_POLL)
        self._end(signal.Signals(self._stopped))
        return 128 + self._stopped

    def _look(self) -> bool:
        """Note which ranks have failed since the last call; return whether all have ended."""
        codes = [process.poll() for process in self._processes]
        for local, code in enumerate(codes):
            if code is None or local in self._failed:
                continue
            if code or self._error_file(local).exists():
                self._failed.append(local)
        return None not in codes

    def _aborted(self) -> int | None:
        """Return the first rank that reported why it ended, which is no consequence of others."""
        return next((each for each in self._failed if self._error_file(each).exists()), None)

    def _report(self) -> int:
        """Print which rank failed first, and why; return its exit code."""
        local = self._aborted()
        if local is None:
            local = next(filter(self._failed_by_itself, self._failed), self._failed[0])
        code: int = self._processes[local].returncode
        how = f"exited with code {code}" if code >= 0 else f"ended by signal {-code}"
        how = error_file.message_in(self._error_file(local)) or how
        others = "the other ranks" if self._place.alone else "this host's other ranks"
        last = self._last[local][:_LONGEST]
        with self._output:
            print(f"error: rank {self._place.first + local} {how}; ended {others}", file=sys.stderr)
            if last:
                print(f"the last line of its errors: {last}", file=sys.stderr)
        return code if code >= 0 else 128 - code

    def _failed_by_itself(self, local: int) -> bool:
        self._read_all(local, 1)
        return not _SECONDARY.search(self._last[local])

    def _wait_for_end(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for process in self._processes):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def _end(self, first: signal.Signals) -> None:
        """End all ranks and their children, with increasing force."""
        for number in dict.fromkeys((first, signal.SIGTERM, signal.SIGKILL)):
            if all(process.poll() is not None for process in self._processes):
                return
            for process in self._processes:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
            self._wait_for_end(_GRACE)


def _environment(place: Place, mpi4py: bool, secret: str) -> dict[str, str]:
    """The variables that all ranks of this host share."""
    environment = _common(place.local_size, mpi4py)
    shared = f"{place.host}:{place.port}"  # all hosts know it
    environment.update(
        WORLD_SIZE=str(place.size),
        LOCAL_WORLD_SIZE=str(place.local_size),
        MASTER_ADDR=place.host,
        MASTER_PORT=str(place.port),
        TORCHELASTIC_RUN_ID=secrets.token_hex(8) if place.alone else shared,
    )
    if secret:
        environment[_SECRET] = secret
    return environment


def _environment_of(step: Step, mpi4py: bool) -> dict[str, str]:
    """The variables of the rank that a task of Slurm is."""
    place = {"MASTER_ADDR": step.host, "MASTER_PORT": str(port_of(f"{os.getuid()} {step.job}"))}
    environment = place | _common(step.local_size, mpi4py)
    environment.update(
        RANK=str(step.rank),
        WORLD_SIZE=str(step.size),
        LOCAL_RANK=str(step.local_rank),
        LOCAL_WORLD_SIZE=str(step.local_size),
        TORCHELASTIC_RUN_ID=step.job,
    )
    return environment


def _common(local_size: int, mpi4py: bool) -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    # Output must not wait until a buffer is full.
    environment.setdefault("PYTHONUNBUFFERED", "1")
    threads = max(1, len(os.sched_getaffinity(0)) // local_size)
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    if mpi4py:
        ours = str(Path(__file__).parent / "mpi" / "as_mpi4py")
        environment["PYTHONPATH"] = os.pathsep.join(
            [ours, *filter(None, [environment.get("PYTHONPATH")])]
        )
    return environment


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _secret(place: Place, folder: Path) -> str:
    """Return the file of the job's secret: the user's, or a new one in the job's folder."""
    given = os.environ.get(_SECRET, "")
    if given or not place.alone:
        return given
    path = folder / "secret"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    return str(path)


def _processors(ranks: int, bind: bool) -> list[list[int]]:
    """Return the processors of each rank: equal shares of neighbors, or all for each."""
    allowed = sorted(os.sched_getaffinity(0), key=_position)
    share = len(allowed) // ranks
    if not bind or share == 0:
        return [allowed] * ranks
    return [allowed[rank * share : (rank + 1) * share] for rank in range(ranks)]


def _position(processor: int) -> tuple[int, int, int]:
    """Return socket and core of a processor, so that threads of a core are neighbors."""
    topology = Path(f"/sys/devices/system/cpu/cpu{processor}/topology")
    try:
        socket_number = int((topology / "physical_package_id").read_text())
        return socket_number, int((topology / "core_id").read_text()), processor
    except (OSError, ValueError):
        return 0, processor, processor
