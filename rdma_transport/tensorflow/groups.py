"""Groups of ranks, which operations name by number."""

import atexit
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rdma_transport._collectives import RawDevice
from rdma_transport.collectives import Communicator, Ranks
from rdma_transport.tensorflow import library


@dataclass(frozen=True)
class Group:
    """Ranks that call operations together. Made by ``connect()`` and ``new_group()``."""

    number: int
    ranks: tuple[int, ...]
    """In the world."""
    rank: int
    """Of this process, in the group; -1 if it is not a member."""

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)


@dataclass
class _State:
    """What this process has open."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    owner: int = 0  # the process that connected
    communicator: Communicator | None = None
    # By process and fabric. The next communicator uses them again, with the tensors in them.
    devices: dict[tuple[int, str], RawDevice] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    named: list[Any] = field(default_factory=list)
    next_number: int = 0
    expected: Group | None = None


_state = _State()


def connect(
    ranks: Ranks | None = None, *, fabric: str | None = None, timeout: float | None = None
) -> Group:
    """Connect to all other ranks; return the group of all. Later calls return the same.

    The arguments and errors are those of ``Communicator.connect()``. Runs no operation, and leaves
    TensorFlow's devices alone.
    """
    with _state.lock:
        _check_process()
        if _state.communicator is None:
            library.operations()
            place = os.getpid(), fabric or ""
            made = Communicator.connect(
                ranks, fabric=fabric, timeout=timeout, _device=_state.devices.get(place)
            )
            _state.devices[place] = made._device
            _state.owner = os.getpid()
            _state.communicator = made
            try:
                _publish(made, tuple(range(made.size)))
            except BaseException:
                close()
                raise
        return _state.groups[0]


def world() -> Group:
    """Return the group of all ranks; connect if that has not been done."""
    if _is_connected():
        return _state.groups[0]
    return _state.expected or connect()


def expect() -> None:
    """Let graphs be built before this process connects, which it does by ``connect()`` only.

    Until then, ``world()`` is a group in which this process is not rank 0.
    """
    _state.expected = Group(0, (0, 1), 1)


def new_group(ranks: Sequence[int]) -> Group:
    """Return the group of some ranks of the world.

    All ranks of the world must call this, in the same order; those that are not members get a
    group in which their rank is -1.
    """
    with _state.lock:
        connect()
        made = communicator()
        members = tuple(int(rank) for rank in ranks)
        others = made.all_gather_object(members)
        for rank, theirs in enumerate(others):
            if theirs != others[0]:
                raise ValueError(
                    f"rank 0 makes a group of the ranks {list(others[0])}, and rank {rank} one of "
                    f"{list(theirs)}"
                )
        if not members or len(set(members)) < len(members):
            raise ValueError(f"a group needs ranks, each one once, not {list(members)}")
        if not all(0 <= rank < made.size for rank in members):
            raise ValueError(f"the ranks are 0 to {made.size - 1}, not {list(members)}")
        return _publish(made, members)


def communicator() -> Communicator:
    """Return the communicator of all ranks, for arrays and objects of Python."""
    world()
    assert _state.communicator is not None
    return _state.communicator


def group_of(number: int) -> Group:
    """Return an open group; raise ``RuntimeError`` if there is none."""
    found = world()
    if number == found.number:
        return found
    if number not in _state.groups:
        raise RuntimeError(f"group {number} is not open in this process")
    return _state.groups[number]


def close() -> None:
    """Leave all groups. Calls in progress fail, also those of other ranks. Idempotent."""
    with _state.lock:
        if _state.owner != os.getpid():  # a forked child has nothing to close
            return
        named, _state.named = _state.named, []
        made, _state.communicator = _state.communicator, None
        _state.groups, _state.next_number = {}, 0
        for each in reversed(named):
            each.close(f"rank {made.rank if made else 0} left")
        if made:
            made.close()


def _publish(made: Communicator, members: tuple[int, ...]) -> Group:
    """Make the named calls of a group, under the next number."""
    number = _state.next_number
    _state.next_number += 1
    inside = made.rank in members
    own = made.split(0 if inside else None, members.index(made.rank) if inside else 0)
    if own is not None:
        _state.named.append(own._raw.publish(number, list(members)))
    group = Group(number, members, members.index(made.rank) if inside else -1)
    _state.groups[number] = group
    return group


def _is_connected() -> bool:
    return _state.communicator is not None and _state.owner == os.getpid()


def _check_process() -> None:
    if _state.communicator is not None and _state.owner != os.getpid():
        raise RuntimeError(
            f"process {_state.owner} connected, and forked this one, which cannot use its groups; "
            "start processes before connect(), or by multiprocessing's method 'spawn'"
        )


@atexit.register
def _end() -> None:
    close()
    _state.devices.clear()
