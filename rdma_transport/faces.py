"""What the ranks of ``rdma-transport run`` find in their environment."""

import os
from dataclasses import dataclass
from pathlib import Path

from rdma_transport.data_parallel.options import FOLDER, Options
from rdma_transport.data_parallel.options import variables as data_parallel_variables
from rdma_transport.slurm import Step


@dataclass(frozen=True)
class Face:
    """What programs find in place of other packages, and of a single process."""

    horovod: bool
    mpi4py: bool | None
    data_parallel: Options | None


def place(start: Step, face: Face) -> dict[str, str]:
    """The variables by which a process finds its rank."""
    numbers = {"RANK": start.rank, "WORLD_SIZE": start.size, "LOCAL_RANK": start.local_rank}
    numbers["LOCAL_WORLD_SIZE"] = start.local_size
    if face.horovod:
        for prefix in ("HOROVOD", "OMPI_COMM_WORLD"):
            numbers |= {f"{prefix}_RANK": start.rank, f"{prefix}_SIZE": start.size}
            numbers[f"{prefix}_LOCAL_RANK"] = start.local_rank
            numbers[f"{prefix}_LOCAL_SIZE"] = start.local_size
        numbers["HOROVOD_CROSS_RANK"] = start.cross_rank
        numbers["HOROVOD_CROSS_SIZE"] = start.cross_size
    variables = {name: str(number) for name, number in numbers.items()}
    return variables | {"TORCHELASTIC_RUN_ID": start.job}


def environment(start: Step, face: Face) -> dict[str, str]:
    """The variables of a rank, besides those that all ranks share."""
    found = place(start, face)
    paths: list[str] = []
    if face.data_parallel:
        found |= data_parallel_variables(face.data_parallel, start.job, os.environ)
        paths.append(FOLDER)
    # A real MPI would take each process for the only one, so ours comes with Horovod's interface.
    if face.horovod:
        paths.append(str(Path(__file__).parent / "horovod" / "as_horovod"))
    if face.horovod if face.mpi4py is None else face.mpi4py:
        paths.append(str(Path(__file__).parent / "mpi" / "as_mpi4py"))
    if paths:
        paths += filter(None, [os.environ.get("PYTHONPATH")])
        found["PYTHONPATH"] = os.pathsep.join(paths)
    # Output must not wait until a buffer is full.
    threads = max(1, len(os.sched_getaffinity(0)) // start.local_size)
    for name, value in (("PYTHONUNBUFFERED", "1"), ("OMP_NUM_THREADS", str(threads))):
        found[name] = os.environ.get(name, value)
    return found
