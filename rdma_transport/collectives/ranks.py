"""The rank of this process, and where to meet the others, from the launcher's environment."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rdma_transport._fabric import FabricValueError
from rdma_transport.errors import BadInputError
from rdma_transport.slurm import find_step, parse_number, port_of


@dataclass(frozen=True)
class Ranks:
    """``rank`` of ``size`` processes that meet at ``host``:``port``, where rank 0 listens.

    Processes of another ``job`` are refused there. Communicators of one job that may connect at
    the same time, or in another order on each rank, differ in their ``purpose``.
    """

    rank: int = 0
    size: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    job: str = ""
    purpose: str = ""


@dataclass(frozen=True)
class Place:
    """Where a rank is: the ``local_rank`` of the ``local_size`` ranks of its host.

    ``cross_rank`` counts the hosts before this one that have a rank with this ``local_rank``, and
    ``cross_size`` all such hosts.
    """

    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1


@dataclass(frozen=True)
class _Launcher:
    """The variables of a launcher. Each tuple of pairs is tried in order."""

    rank: str
    size: str
    job: tuple[str, ...]
    local: tuple[str, str]
    cross: tuple[tuple[str, str], ...] = ()


_LAUNCHERS = (
    _Launcher(  # rdma-transport run, and torchrun
        *("RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID",), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")),
        (("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"), ("GROUP_RANK", "GROUP_WORLD_SIZE")),
    ),
    _Launcher(
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    _Launcher(
        *("PMI_RANK", "PMI_SIZE", ("PMI_JOBID", "PMI_FD", "HYDI_CONTROL_FD")),
        ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ),
)
# What other launchers set.
_UNKNOWN = ("PMIX_RANK", "MV2_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK",
            "PALS_RANKID", "ALPS_APP_PE", "HOROVOD_RANK")  # fmt: skip
_SCHEDULERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "COBALT_JOBID", "JOB_ID")
_START = "start all ranks with 'rdma-transport run', srun, mpirun or torchrun"


def find_ranks(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Return the rank that a launcher assigned; rank 0 of 1 without one.

    Knows ``rdma-transport run``, torchrun, mpirun and srun. The meeting place is ``MASTER_ADDR``
    and ``MASTER_PORT``; without them, a port of this host that follows from the job's name. Under
    srun it is a port of the step's first node. Raise ``FabricValueError`` if a variable is
    malformed.
    """
    try:
        return _found(environment)
    except BadInputError as error:
        raise FabricValueError(str(error)) from None


def find_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Return where a launcher started this rank; ``None`` if it does not tell.

    Without a launcher, the process is alone. Raise ``FabricValueError`` if a variable is malformed.
    """
    try:
        return _found_place(environment)
    except BadInputError as error:
        raise FabricValueError(str(error)) from None


def place_among(rank: int, hosts: Sequence[str]) -> Place:
    """Return where a rank is, given the ``host_id()`` of all ranks."""
    own = hosts[rank]
    local = hosts[:rank].count(own)
    alike = [host for host in dict.fromkeys(hosts) if hosts.count(host) > local]
    return Place(local, hosts.count(own), alike.index(own), len(alike))


def host_id() -> str:
    """Return what processes that can share memory have in common, and no others."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')}"


def why_alone(environment: Mapping[str, str] = os.environ) -> str:
    """Return why a process of size 1 may be meant to be one of several; empty if it is not."""
    if _launcher(environment) or find_step(environment):
        return ""
    for each in _LAUNCHERS:
        for given, missing in ((each.rank, each.size), (each.size, each.rank)):
            if given in environment:
                return f"{given} is set, but {missing} is not: {_START}"
    for name in _UNKNOWN:
        if name in environment:
            return f"{name} is set by a launcher that is not known here: {_START}"
    tasks = environment.get("SLURM_NTASKS", "1")
    if tasks != "1":
        return f"the job of Slurm has {tasks} tasks, but srun did not start this process: {_START}"
    for name in _SCHEDULERS:
        copies = list(_copies(name, environment[name])) if name in environment else []
        if copies:
            pids = ", ".join(map(str, copies[:4]))
            return (
                f"the same command also runs on this host in the job {name}={environment[name]} "
                f"(process {pids}): {_START}"
            )
    return ""


def _launcher(environment: Mapping[str, str]) -> _Launcher | None:
    return next(
        (each for each in _LAUNCHERS if each.rank in environment and each.size in environment),
        None,
    )


def _pair(environment: Mapping[str, str], names: tuple[str, str]) -> tuple[int, int] | None:
    """Return the values of two variables, number and count; ``None`` if one is not set."""
    if any(name not in environment for name in names):
        return None
    number, count = (parse_number(environment, name) for name in names)
    if number >= count:
        raise BadInputError(f"{names[0]}={number} does not fit {names[1]}={count}")
    return number, count


def _found(environment: Mapping[str, str]) -> Ranks:
    launcher = _launcher(environment)
    if launcher and (found := _pair(environment, (launcher.rank, launcher.size))):
        job = ".".join(environment[name] for name in launcher.job if name in environment)
        return Ranks(*found, *_meeting(environment, job), job)
    if step := find_step(environment):
        place = _meeting(environment, step.job, step.host)
        return Ranks(step.rank, step.size, *place, step.job)
    return Ranks()


def _found_place(environment: Mapping[str, str]) -> Place | None:
    launcher = _launcher(environment)
    if launcher is None:
        step = find_step(environment)
        return Place(*step.place) if step else Place()
    size = parse_number(environment, launcher.size)
    local = _pair(environment, launcher.local) or ((0, 1) if size == 1 else None)
    if local is None:
        return None
    found = (_pair(environment, names) for names in launcher.cross)
    cross = (0, 1) if local[1] >= size else next(filter(None, found), None)
    return None if cross is None else Place(*local, *cross)


def _meeting(environment: Mapping[str, str], job: str, host: str = "127.0.0.1") -> tuple[str, int]:
    host = environment.get("MASTER_ADDR", host)
    if "MASTER_PORT" in environment:
        port = parse_number(environment, "MASTER_PORT")
        # torchrun itself may listen there.
        taken = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return host, port_of(f"{job} {port}") if taken else port
    return host, port_of(f"{os.getuid()} {job}")


def _copies(name: str, job: str) -> Iterator[int]:
    """Yield the processes of this host that run the same command in the same job.

    Not those that forked this one, or were forked by it.
    """
    own = Path("/proc/self/cmdline").read_bytes()
    variable = f"{name}={job}".encode()
    parents: dict[int, int] = {}
    alike = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes() == own and variable in (
                folder / "environ"
            ).read_bytes().split(b"\0"):
                alike.append(pid)
        except (OSError, ValueError, IndexError):  # it ended, or belongs to another user
            continue
    for pid in alike:
        if not _descends(pid, os.getpid(), parents) and not _descends(os.getpid(), pid, parents):
            yield pid


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    """Whether `pid` is `ancestor` or descends from it."""
    while pid != ancestor and pid in parents:
        pid = parents[pid]
    return pid == ancestor
