"""Start, end, and the place of this process in the job."""

import os
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import rdma_transport.tensorflow as rt
from rdma_transport.collectives.membership import until_none_is_lost
from rdma_transport.collectives.ranks import (
    Place,
    find_place,
    find_ranks,
    host_id,
    place_among,
    why_alone,
)
from rdma_transport.error_file import note_part
from rdma_transport.horovod import process_sets
from rdma_transport.horovod.process_sets import ProcessSet

# What all modules of the interface offer.
__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_lock = threading.RLock()
_world: rt.Group | None = None
_places: list[Place] = []  # of the ranks


def init(comm: Any = None, process_sets: str | Sequence[ProcessSet] | None = None) -> None:
    """Connect to the other ranks that the launcher started; without a launcher, size is 1.

    `comm` is a communicator of all ranks, or none. Calling it again adds `process_sets` that are
    new, and does nothing else. Runs no operation of TensorFlow, so devices can be chosen
    afterwards. In an elastic job, waits until the launcher says which ranks there are. Raises
    errors of ``rdma_transport.fabric``.
    """
    with _lock:
        if _world is None:
            until_none_is_lost(lambda: _connect(comm), rt.close)
        _register(process_sets, comm if hasattr(comm, "Get_size") else None)
    note_part()


def _connect(comm: Any) -> None:
    global _world, _places
    if find_ranks().size == 1 and (reason := why_alone()):
        warnings.warn(f"this process trains alone, as rank 0 of 1: {reason}", stacklevel=5)
    world = rt.connect()
    _check_comm(comm, world.size)
    _places = _find_places(world)
    _world = world


def _find_places(world: rt.Group) -> list[Place]:
    """Return where each rank is: as the launcher says, or by hosts if it says nothing."""
    found = rt.communicator().all_gather_object((host_id(), find_place()))
    hosts = [host for host, _ in found]
    return [place or place_among(rank, hosts) for rank, (_, place) in enumerate(found)]


def _check_comm(comm: Any, size: int) -> None:
    """Refuse communicators of some of the ranks."""
    if comm is None or isinstance(comm, bool):
        return
    try:
        found = len(comm) or size if isinstance(comm, (list, tuple, range)) else comm.Get_size()
    except AttributeError:
        raise TypeError(f"init() takes a communicator or a list of ranks, not {comm!r}") from None
    if found != size:
        raise NotImplementedError(
            f"init() for {found} of {size} ranks is not offered: start as many ranks as are "
            "needed, or use a ProcessSet"
        )


def _register(sets: str | Sequence[ProcessSet] | None, comm: Any) -> None:
    assert _world is not None
    process_sets.start(_world, comm)
    if sets is None or sets == "dynamic":
        return
    if isinstance(sets, str):
        raise ValueError(f"process_sets is a list or 'dynamic', not {sets!r}")
    process_sets.add_all(list(sets))


def shutdown() -> None:
    """Leave the job. ``init()`` may be called again, if all ranks do."""
    global _world, _places
    with _lock:
        if _world is not None:
            _world, _places = None, []
            process_sets.stop()
            rt.close()


def is_initialized() -> bool:
    """Return whether ``init()`` was called."""
    return _world is not None


def world() -> rt.Group:
    """Return the group of all ranks. Raise ``ValueError`` before ``init()``."""
    if _world is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _world


def rank() -> int:
    """Return the rank of this process."""
    return int(world().rank)


def size() -> int:
    """Return the number of ranks."""
    return int(world().size)


def local_rank() -> int:
    """Return the rank among those of this host."""
    return _places[rank()].local_rank


def local_size() -> int:
    """Return the number of ranks on this host."""
    return _places[rank()].local_size


def cross_rank() -> int:
    """Return the number of this host, among those with a rank of this local rank."""
    return _places[rank()].cross_rank


def cross_size() -> int:
    """Return the number of hosts with a rank of this local rank."""
    return _places[rank()].cross_size


def is_homogeneous() -> bool:
    """Return whether all hosts have equally many ranks."""
    world()
    return len({place.local_size for place in _places}) == 1


def mpi_threads_supported() -> bool:
    """Return true: calls may come from any thread, also beside mpi4py."""
    world()
    return True


def mpi_enabled() -> bool:
    """Return false: MPI carries nothing."""
    return False


def mpi_built(verbose: bool = False) -> bool:
    """Return whether mpi4py finds ranks: under launchers that set no ``HOROVOD_RANK``."""
    return "HOROVOD_RANK" not in os.environ


def gloo_enabled() -> bool:
    """Return true: this transport stands in Gloo's place."""
    return True


def gloo_built(verbose: bool = False) -> bool:
    """Return true: this transport stands in Gloo's place."""
    return True


def nccl_built(verbose: bool = False) -> int:
    """Return 0."""
    return 0


def ddl_built(verbose: bool = False) -> bool:
    """Return false."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """Return false."""
    return False


def cuda_built(verbose: bool = False) -> bool:
    """Return false: reductions take place on processors."""
    return False


def rocm_built(verbose: bool = False) -> bool:
    """Return false."""
    return False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Refuse."""
    raise NotImplementedError(
        "start_timeline() is not offered: 'rdma-transport trace' and the profiler of TensorFlow "
        "show when operations run"
    )


def stop_timeline() -> None:
    """Refuse."""
    raise NotImplementedError("stop_timeline() is not offered, as start_timeline() is not")
