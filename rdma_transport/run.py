"""The command ``rdma-transport run``: start the ranks of a job, or be one under srun."""

import contextlib
import errno
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from rdma_transport import error_file
from rdma_transport.data_parallel.options import APART, Options
from rdma_transport.elastic import MEETING, MEMBER
from rdma_transport.elastic.discovery import Discovery
from rdma_transport.elastic.job import ElasticJob
from rdma_transport.elastic.launchers import taking_part
from rdma_transport.elastic.options import launcher_of, limits_of, listing_of
from rdma_transport.errors import BadInputError
from rdma_transport.faces import Face, environment, place
from rdma_transport.job import Job
from rdma_transport.processor import shares
from rdma_transport.slurm import Step, find_step, port_of
from rdma_transport.sockets import free_port

_SECRET = "RDMA_TRANSPORT_SECRET_FILE"
_NO_INIT = (
    "ended without having called init() of Horovod. It trained alone, if it trained: check that "
    "the program imports horovod, calls hvd.init(), and hides no error of either"
)


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
    start_timeout: Annotated[
        int | None,
        typer.Option(
            help="Give the ranks this many seconds to meet; 60 if not given.",
            min=1,
        ),
    ] = None,
    horovod: Annotated[
        bool,
        typer.Option("--horovod", help="Let 'import horovod' import rdma_transport.horovod."),
    ] = False,
    mpi4py: Annotated[
        bool | None,
        typer.Option(
            help="Let 'from mpi4py import MPI' import rdma_transport.mpi; implied by --horovod."
        ),
    ] = None,
    data_parallel: Annotated[
        bool,
        typer.Option(
            "--data-parallel",
            help="Let the ranks share each batch of a script that trains in one process.",
        ),
    ] = False,
    scale_batch: Annotated[
        bool,
        typer.Option(
            "--scale-batch",
            help="With --data-parallel, keep the batch of a rank: fit() trains with a larger one.",
        ),
    ] = False,
    sync_batch_norm: Annotated[
        bool,
        typer.Option(
            "--sync-batch-norm",
            help="With --data-parallel, normalize by the statistics of whole batches.",
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="With --data-parallel, list what is changed at which line."),
    ] = False,
    elastic: Annotated[
        bool,
        typer.Option("--elastic", help="Go on without ranks that fail, and replace them."),
    ] = False,
    least: Annotated[
        int | None,
        typer.Option(
            "--min",
            help="With --elastic, end the job if fewer ranks are left; 1 if not given.",
            min=1,
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--max",
            help="With --elastic, the most ranks there may be, and with which the job begins if "
            "--ranks is not given.",
            min=1,
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            help="With --elastic, replace each rank this often, and end the job if it fails again; "
            "3 if not given, 0: replace none.",
            min=0,
        ),
    ] = None,
    hostfile: Annotated[
        str,
        typer.Option(
            help="With --elastic, run on the hosts that this file lists, in lines such as node1:4. "
            "It is read every second.",
        ),
    ] = "",
    host_discovery_script: Annotated[
        str,
        typer.Option(help="With --elastic, run on the hosts that this command prints likewise."),
    ] = "",
    launch_with: Annotated[
        str,
        typer.Option(help="Start a line of shell on a listed host with this command."),
    ] = "ssh -o BatchMode=yes {host}",
    quiet_ranks: Annotated[
        bool,
        typer.Option("--quiet-ranks", help="Show only rank 0's standard output, and all errors."),
    ] = False,
    bind: Annotated[
        bool,
        typer.Option(
            "--bind/--no-bind",
            help="Keep each rank to its share of the processors, if each has one.",
        ),
    ] = True,
) -> None:
    """Start the ranks of a Keras, Horovod, mpi4py or NumPy program.

    The ranks communicate by rdma_transport.horovod, .tensorflow, .mpi or .collectives.

    Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun
    does, and OMP_NUM_THREADS to this rank's share of the processors unless it is set. Without
    RDMA_TRANSPORT_SECRET_FILE the ranks get a secret of their own. Each line of output starts with
    the rank. If this host has a processor for each of its ranks, each rank is kept to its share of
    them, as mpirun does; --no-bind lets all ranks use all processors.

    If a rank fails, the others of this host are ended, and the command exits with the code of the
    rank whose failure came first (128 + N after signal N). Ctrl-C ends all ranks.

    With --horovod, also sets HOROVOD_RANK and OMPI_COMM_WORLD_RANK and the others that programs
    read, and fails if a rank ends without having called init().

    With --data-parallel, the script is one for a single process, and no line of it changes: each
    rank runs it with the same seeds, computes its part of each batch where a Keras model is called,
    and gets the outputs and gradients of the whole batch. A script that never does so fails.

    With --elastic, a rank that fails does not end the job. The others go on, with what the program
    committed by hvd.elastic, or in fit() of a script for one process, and take in the process that
    replaces it. So it is with a host that is lost. Others may join, with other numbers for
    --node-rank; the job ends with host 0, which decides. With --hostfile or
    --host-discovery-script, this command starts itself on the hosts that are listed, by ssh, and
    lets those leave that no longer are.

    With --nnodes, run the same command on each host, with its --node-rank. Ranks of different hosts
    authenticate each other only if RDMA_TRANSPORT_SECRET_FILE names the same secret on all.

    Under srun, each task of Slurm is one rank of a job that spans its nodes, and gets the same
    variables. Then omit --ranks and the options of several hosts. With --elastic, each task starts
    the ranks of its node.
    """
    program = shutil.which(command[0])
    if program is None:
        raise BadInputError(f"there is no program {command[0]}")
    if horovod and data_parallel:
        raise BadInputError(
            "--horovod is for scripts that divide their work, and --data-parallel "
            "for those that do not: omit one of them"
        )
    asked = Options(explain, scale_batch, sync_batch_norm)
    if asked != Options() and not data_parallel:
        raise BadInputError("--explain, --scale-batch and --sync-batch-norm need --data-parallel")
    if not elastic and (least, most, restarts) != (None, None, None):
        raise BadInputError("--min, --max and --restarts need --elastic")
    listing = listing_of(hostfile, host_discovery_script, launch_with, ranks)
    if listing and not elastic:
        raise BadInputError("--hostfile and --host-discovery-script need --elastic")
    if elastic and scale_batch:
        raise BadInputError("--elastic is not for --scale-batch")
    face = Face(horovod, mpi4py, asked if data_parallel else None)
    apart = _NO_INIT if horovod else APART if data_parallel else ""
    step = find_step()
    given = dict(os.environ)
    of_another = ("TORCHELASTIC_USE_AGENT_STORE", error_file.PART_VARIABLE, MEETING, MEMBER)
    for name in of_another:  # launcher
        given.pop(name, None)
    if start_timeout is not None:
        given["RDMA_TRANSPORT_START_TIMEOUT"] = f"{start_timeout}s"
    if not (step and step.size > 1) and nnodes == 1:
        _refuse_under_mpirun()
    meeting = f"{master_addr}:{master_port}" if nnodes > 1 else ""
    if elastic:
        launcher = launcher_of(step, bool(listing), nnodes, node_rank, master_addr, master_port)
        if launcher.host and data_parallel:
            raise BadInputError("--elastic with --data-parallel is for the ranks of one host")
        here, limits = limits_of(launcher, ranks, least, most, restarts, start_timeout)
        meeting = f"{launcher.host}:{launcher.port}" if launcher.host else ""
        node_rank = launcher.node
    elif step and step.size > 1:
        _refuse_given_twice(step, ranks, nnodes, node_rank, master_addr)
        given.setdefault("MASTER_ADDR", step.host)
        given.setdefault("MASTER_PORT", str(port_of(f"{os.getuid()} {step.job}")))
        if not apart and not quiet_ranks:
            os.execve(program, command, given | environment(step, face))
        starts, bind = [step], False  # Slurm has bound the task
    else:
        starts = _starts(ranks or 2, nnodes, node_rank, master_addr, master_port)
        given["MASTER_ADDR"] = starts[0].host
        given["MASTER_PORT"] = str(master_port if nnodes > 1 else free_port())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rdma_transport_")))
        if meeting:
            stack.enter_context(_claimed(meeting, node_rank or 0))
        if elastic:
            passed = {
                "--horovod": horovod,
                "--mpi4py": mpi4py is True,
                "--no-mpi4py": mpi4py is False,
                "--quiet-ranks": quiet_ranks,
                "--no-bind": not bind,
                f"--start-timeout={start_timeout}": start_timeout is not None,
            }
            options = [option for option, is_given in passed.items() if is_given]
            meet = (launcher.host, launcher.port)
            discovery = Discovery(listing, *meet, [*options, "--", *command]) if listing else None
            part = stack.enter_context(taking_part(launcher, here, limits, discovery))
            starts = part.starts
        if secret := _secret(not meeting and len(starts) == starts[0].size, folder):
            given[_SECRET] = secret
        environments = [given | environment(start, face) for start in starts]
        processors = shares(len(starts), bind)
        words = [program, *command[1:]]
        given_to_job = (words, starts, environments, processors, folder, apart, quiet_ranks)
        job = (
            ElasticJob(
                *given_to_job,
                leader=part.connection,
                name=part.name,
                place=lambda step: place(step, face),
            )
            if elastic
            else Job(*given_to_job)
        )
        code = job.run()
    raise typer.Exit(code)


def _refuse_given_twice(
    step: Step, ranks: int | None, nnodes: int, node_rank: int | None, master_addr: str
) -> None:
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


def _refuse_under_mpirun() -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        # A rank of this command has such a variable, too, but its own ranks are wanted.
        if os.environ.get(name, "1") != "1" and "WORLD_SIZE" not in os.environ:
            folder = Path(__file__).parent / "horovod" / "as_horovod"
            raise BadInputError(
                f"mpirun started {os.environ[name]} copies of this command, and each would be a "
                "job of its own. Omit mpirun, or let it start the program itself, which finds its "
                f"rank; for one that imports horovod, with {folder} on PYTHONPATH"
            )


def _starts(
    ranks: int, nodes: int, node: int | None, master_addr: str, master_port: int
) -> list[Step]:
    """Return the ranks of this host, described as srun describes its tasks."""
    if nodes == 1:
        if node:
            raise BadInputError(f"--node-rank {node} needs --nnodes, the number of hosts")
        node, host, job = 0, "127.0.0.1", secrets.token_hex(8)
    elif node is None or not master_addr:
        raise BadInputError(
            f"--nnodes {nodes} needs --node-rank, the number of this host, and --master-addr, an "
            "address of host 0"
        )
    elif node >= nodes:
        raise BadInputError(f"--node-rank {node} of --nnodes {nodes}: the last one is {nodes - 1}")
    else:
        host, job = master_addr, f"{master_addr}:{master_port}"  # all hosts know it
    return [
        Step(node * ranks + local, nodes * ranks, local, ranks, node, nodes, host, job)
        for local in range(ranks)
    ]


@contextlib.contextmanager
def _claimed(meeting: str, node: int) -> Iterator[None]:
    """Keep another job's part from starting that would meet this one's: the same, on this host."""
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0rdma_transport run {node} {meeting}"[:100])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise BadInputError(
                f"another job of this host meets at {meeting}: give another --master-port"
            ) from None
        yield


def _secret(whole: bool, folder: Path) -> str:
    """Return the file of the secret: the user's, or a new one if the `whole` job is here."""
    given = os.environ.get(_SECRET, "")
    if given or not whole:
        return given
    path = folder / "secret"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    return str(path)
