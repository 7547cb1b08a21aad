"""The rank of this process, and where to meet the others, from the launcher's environment."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rdma_transport.errors import BadInputError


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
    ("SLURM_PROCID", "SLURM_NTASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)
_FIRST_PORT, _PORTS = 20000, 12000  # below those that Linux gives to connections


def find_ranks(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Return the rank that a launcher assigned; rank 0 of 1 without one.

    Knows ``rdma-transport run``, torchrun, mpirun and srun. The meeting place is ``MASTER_ADDR``
    and ``MASTER_PORT``; without them, a port of this host that follows from the job's name. Raise
    ``BadInputError`` if a variable is malformed.
    """
    for rank_name, size_name, job_names in _LAUNCHERS:
        if rank_name in environment and size_name in environment:
            rank, size = (_number(environment, name) for name in (rank_name, size_name))
            if not 0 <= rank < size:
                raise BadInputError(f"{rank_name}={rank} does not fit {size_name}={size}")
            job = ".".join(environment[name] for name in job_names if name in environment)
            return Ranks(rank, size, *_place(environment, job), job)
    return Ranks()


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise BadInputError(f"{name}={text}: give a number")
    return int(text)


def _place(environment: Mapping[str, str], job: str) -> tuple[str, int]:
    host = environment.get("MASTER_ADDR", "127.0.0.1")
    if "MASTER_PORT" in environment:
        port = _number(environment, "MASTER_PORT")
        # torchrun itself may listen there.
        taken = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return host, _port_of(f"{job} {port}") if taken else port
    return host, _port_of(f"{os.getuid()} {job}")


def _port_of(name: str) -> int:
    digest = hashlib.sha256(name.encode()).digest()
    return _FIRST_PORT + int.from_bytes(digest[:4]) % _PORTS
