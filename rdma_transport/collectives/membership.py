"""A rank's part in an elastic job: its launcher says which ranks there are, and when that changes.

The launcher is reached by a socket that it names in the environment. A process leaves its epoch and
asks for the next one, and then finds its place in the environment, as any rank does.
"""

import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from rdma_transport._fabric import FabricConnectionError, FabricError
from rdma_transport.collectives.ranks import Ranks, find_ranks
from rdma_transport.collectives.wire import Deadline
from rdma_transport.elastic import MEETING, MEMBER

_NEWS = 5.0  # seconds, for the launcher to say that a rank has ended
T = TypeVar("T")
_lock = threading.Lock()
_own: "list[Membership]" = []  # of this process


class Membership:
    """The connection to the launcher. Thread-safe."""

    def __init__(self, path: str, member: int) -> None:
        self._member, self.process = member, os.getpid()
        self._changed = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX)
        self._error = ""  # why the launcher says no more
        self._place: dict[str, Any] | None = None
        self._epoch, self._lost = 0, 0
        self._waiting = 0
        self._progress: int | None = None
        self._deadline: Deadline | None = None
        try:
            self._socket.connect(path)
        except OSError as error:
            raise FabricConnectionError(
                f"cannot reach the launcher of this elastic job: {error.strerror or error}"
            ) from None
        threading.Thread(target=self._listen, name="rdma_membership", daemon=True).start()

    def next_ranks(self) -> Ranks:
        """Wait for the next epoch; return this process' place in it.

        The process must have left its last one. Raise ``FabricConnectionError``.
        """
        with self._changed:
            self._place = None
            self._send(ask=True)
            self._changed.wait_for(lambda: self._place or self._error)
            if self._place is None:
                raise FabricConnectionError(self._error)
            self._epoch = self._place["epoch"]
            os.environ.update(self._place["variables"])
        return find_ranks()

    def end_with_epoch(self, deadline: Deadline) -> None:
        """Move a deadline, by which ranks connect, to the moment at which one of them is lost."""
        with self._changed:
            self._deadline = deadline
            if self._is_over():
                deadline.move(0)

    def has_lost(self, seconds: float) -> bool:
        """Return whether a rank of this epoch has ended, as soon as the launcher says so."""
        with self._changed:
            return self._changed.wait_for(self._is_over, seconds)

    @property
    def others_wait(self) -> bool:
        """Whether other processes wait to be taken in."""
        return self._waiting > 0

    def note_progress(self, steps: int) -> None:
        """Say how many steps of the training are done, for processes that are to come."""
        with self._changed:
            self._send(progress=steps)

    def progress(self) -> int:
        """Return what another process said by ``note_progress()`` last; 0 if none did."""
        with self._changed:
            self._progress = None
            self._send(ask_progress=True)
            self._changed.wait_for(lambda: self._progress is not None or self._error)
            if self._progress is None:
                raise FabricConnectionError(self._error)
            return self._progress

    def take_no_more(self) -> None:
        """Say that no other process can be taken in any more."""
        with self._changed:
            self._send(complete=True)

    def wait_for_end(self) -> NoReturn:
        """Wait until the launcher ends this process, which has come too late to be taken in."""
        with self._changed:
            self._changed.wait_for(lambda: self._error)
            raise FabricConnectionError(self._error)

    def note_state(self) -> None:
        """Say that this process has the state of the training."""
        with self._changed:
            self._send(state=True)

    def _is_over(self) -> bool:
        return 0 < self._epoch <= self._lost

    def _send(self, **message: Any) -> None:
        try:
            self._socket.sendall(json.dumps({"member": self._member, **message}).encode() + b"\n")
        except OSError as error:
            raise FabricConnectionError(
                f"the launcher of this elastic job has gone: {error.strerror or error}"
            ) from None

    def _listen(self) -> None:
        try:
            for line in self._socket.makefile("rb"):
                self._take(json.loads(line))
        except (OSError, ValueError, KeyError):
            pass
        self._take({"error": "the launcher of this elastic job has gone"})

    def _take(self, message: dict[str, Any]) -> None:
        with self._changed:
            if "variables" in message:
                self._place, self._waiting = message, 0
            self._error = self._error or message.get("error", "")
            self._waiting = message.get("waiting", self._waiting)
            self._progress = message.get("progress", self._progress)
            self._lost = max(self._lost, message.get("lost", 0))
            if self._deadline is not None and self._is_over():
                self._deadline.move(0)
            self._changed.notify_all()


def process_number() -> int:
    """Return the number of this process in its elastic job, which no other process has."""
    return int(os.environ[MEMBER])


def is_elastic() -> bool:
    """Return whether ``rdma-transport run --elastic`` started this process."""
    return MEETING in os.environ


def others_wait() -> bool:
    """Return whether other processes wait to become ranks of this elastic job.

    Ranks learn that at different times. When they have agreed on it, all close their communicators
    and call ``Communicator.connect()`` again.
    """
    return is_elastic() and membership().others_wait


def until_none_is_lost(connect: Callable[[], T], leave: Callable[[], None] = lambda: None) -> T:
    """Call a function that connects, again each time that a rank is lost meanwhile.

    `leave` undoes what was done of it.
    """
    while True:
        try:
            return connect()
        except FabricError:
            leave()
            if not (is_elastic() and membership().has_lost(_NEWS)):
                raise


def membership() -> Membership:
    """Return that of this process, which the launcher started."""
    with _lock:
        if not _own or _own[0].process != os.getpid():
            _own[:] = [Membership(os.environ[MEETING], process_number())]
        return _own[0]
