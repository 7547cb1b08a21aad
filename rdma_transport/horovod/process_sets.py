"""Sets of ranks that reduce among themselves. All ranks add and remove them in the same order."""

import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.collectives.membership import is_elastic

_lock = threading.RLock()
_sets: dict[int, "ProcessSet"] = {}  # by number; empty before init()
_groups: dict[tuple[int, ...], rt.Group] = {}  # by ranks; those of removed sets are used again
_world: rt.Group | None = None


class ProcessSet:
    """Some of the ranks. ``init(process_sets=...)`` or ``add_process_set()`` make it usable.

    Made of ranks, or for ``init()`` of a communicator of mpi4py, whose ranks it has from then on.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Sequence[int] | Any) -> None:
        if hasattr(ranks_or_comm, "Get_size"):
            self.mpi_comm = ranks_or_comm
            return
        self.ranks = sorted(int(rank) for rank in ranks_or_comm)
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"a process set has each rank once: {self.ranks}")

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    def included(self) -> bool:
        """Return whether this process belongs to the set."""
        return bool(group_of(self, required=False).rank >= 0)

    def rank(self) -> int:
        """Return the rank of this process within the set. Raise ``ValueError`` if it has none."""
        group = group_of(self, required=False)
        if group.rank < 0:
            raise ValueError(f"this process does not belong to {self}")
        return int(group.rank)

    def size(self) -> int:
        """Return the number of ranks."""
        return int(group_of(self, required=False).size)


class _Global(ProcessSet):
    """All ranks."""

    def __init__(self) -> None:
        self.process_set_id = 0


global_process_set = _Global()


def start(world: rt.Group, comm: Any) -> None:
    """Begin with the set of all ranks, for which a communicator may stand.

    Do nothing if that has happened.
    """
    global _world
    with _lock:
        if _world is None:
            _world = world
            global_process_set.mpi_comm = comm
            global_process_set.ranks = list(range(world.size))
            _sets[0] = global_process_set
            _groups[tuple(global_process_set.ranks)] = world


def stop() -> None:
    """Forget all sets."""
    global _world
    with _lock:
        for each in _sets.values():
            each.process_set_id = None
        global_process_set.process_set_id = 0
        global_process_set.ranks = global_process_set.mpi_comm = None
        _sets.clear()
        _groups.clear()
        _world = None


def _started() -> rt.Group:
    if _world is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _world


def _check(ranks: Sequence[int], taken: Iterable[Sequence[int] | None]) -> None:
    size = _started().size
    if not ranks:
        raise ValueError("a process set has one rank or more")
    if any(not 0 <= rank < size for rank in ranks):
        raise ValueError(f"a process set has ranks from 0 to {size - 1}, not {list(ranks)}")
    if list(ranks) in [list(each or ()) for each in taken]:
        raise ValueError(f"there is a process set of ranks {list(ranks)} already")


def add_all(sets: Sequence[ProcessSet]) -> None:
    """Add those that ranks give in the same place, and that are not there yet. All ranks call this.

    They may differ: each rank knows its own communicators. Raise ``ValueError`` on all ranks if a
    set is invalid, and on a rank that gives two of the same ranks.
    """
    with _lock:
        own = [each for each in sets if each is not global_process_set]
        for each in own:
            if each.ranks is None:
                each.ranks = sorted(each.mpi_comm.allgather(_started().rank))
        every = rt.communicator().all_gather_object([each.ranks for each in own])
        numbers = {tuple(each.ranks or ()): number for number, each in _sets.items()}
        new = dict.fromkeys(
            tuple(ranks)
            for place in itertools.zip_longest(*every)
            for ranks in place
            if ranks is not None and tuple(ranks) not in numbers
        )
        for ranks in new:
            _check(ranks, ())
        for ranks in new:
            numbers[ranks] = _add(ProcessSet(ranks))
        taken: list[Sequence[int] | None] = [global_process_set.ranks]
        for each in own:
            _check(each.ranks or (), taken)
            taken.append(each.ranks)
        for each in own:
            each.process_set_id = numbers[tuple(each.ranks or ())]
            _sets[each.process_set_id] = each


def _add(new: ProcessSet) -> int:
    if is_elastic():
        raise NotImplementedError(
            "process sets are not offered in elastic jobs, whose ranks change: omit --elastic"
        )
    ranks = tuple(new.ranks or ())
    if ranks not in _groups:
        _groups[ranks] = rt.new_group(ranks)
    number = next(number for number in range(len(_sets) + 1) if number not in _sets)
    _sets[number] = new
    new.process_set_id = number
    return number


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Add a set on all ranks; return it. Raise ``ValueError`` if there is one of these ranks."""
    new = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if new.ranks is None:
        raise NotImplementedError("give process sets of communicators to init()")
    with _lock:
        _check(new.ranks or (), [each.ranks for each in _sets.values()])
        _add(new)
    return new


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set on all ranks; return whether it was there and can be removed."""
    with _lock:
        number = process_set.process_set_id
        if not number or _sets.get(number) is not process_set:
            return False
        del _sets[number]
        process_set.process_set_id = None
    return True


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ranks of all sets by number."""
    with _lock:
        return {number: list(each.ranks or ()) for number, each in _sets.items()}


def group_of(process_set: ProcessSet, required: bool = True) -> rt.Group:
    """Return the group of a set. Raise ``ValueError`` if there is no such set.

    `required`: raise ``InvalidArgumentError`` if this process does not belong to it.
    """
    _started()
    found = _sets.get(-1 if process_set.process_set_id is None else process_set.process_set_id)
    if found is None:
        raise ValueError(f"{process_set} is not registered: init() or add_process_set() does that")
    group = _groups[tuple(found.ranks or ())]
    if required and group.rank < 0:
        raise tf.errors.InvalidArgumentError(
            None, None, f"rank {_started().rank} does not belong to {found}"
        )
    return group


def find(process_set_id: int) -> ProcessSet:
    """Return the set of a number. Raise ``ValueError`` if there is none."""
    _started()
    if process_set_id not in _sets:
        raise ValueError(f"there is no process set {process_set_id}")
    return _sets[process_set_id]
