"""The rank of this process, and where to meet the others, from the launcher's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rdma_transport._fabric import FabricValueError
from rdma_transport.errors import BadInputError
from rdma_transport.slurm import find_step, parse_number, port_of


@dataclass(frozen=True)
class Ranks:
    """``rank`` of ``size`` processes that meet at ``host``:``port``, where rank 0 listens.

    Processes of another ``job`` are refused there.
    """

    rank: int = 0
    size: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    job: str = ""


# Launchers by the variables that name rank, size and job.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID",)),  # rdma-transport run, and torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")),
    ("PMI_RANK", "PMI_SIZE", ("PMI_JOBID", "PMI_FD", "HYDI_CONTROL_FD")),
)


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


def _found(environment: Mapping[str, str]) -> Ranks:
    for rank_name, size_name, job_names in _LAUNCHERS:
        if rank_name in environment and size_name in environment:
            rank, size = (parse_number(environment, name) for name in (rank_name, size_name))
            if not 0 <= rank < size:
                raise BadInputError(f"{rank_name}={rank} does not fit {size_name}={size}")
            job = ".".join(environment[name] for name in job_names if name in environment)
            return Ranks(rank, size, *_place(environment, job), job)
    if step := find_step(environment):
        place = _place(environment, step.job, step.host)
        return Ranks(step.rank, step.size, *place, step.job)
    return Ranks()


def _place(environment: Mapping[str, str], job: str, host: str = "127.0.0.1") -> tuple[str, int]:
    host = environment.get("MASTER_ADDR", host)
    if "MASTER_PORT" in environment:
        port = parse_number(environment, "MASTER_PORT")
        # torchrun itself may listen there.
        taken = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return host, port_of(f"{job} {port}") if taken else port
    return host, port_of(f"{os.getuid()} {job}")
