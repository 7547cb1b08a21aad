"""The processes of an elastic job: those that die are replaced, and the others go on."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rdma_transport.elastic import MEETING, MEMBER
from rdma_transport.elastic.meeting import Meeting
from rdma_transport.elastic.members import Members
from rdma_transport.job import Job, free_port
from rdma_transport.slurm import Step

_POLL = 0.02


@dataclass(frozen=True)
class Limits:
    """What an elastic job may do."""

    least: int
    """It ends if fewer ranks are left."""
    restarts: int
    """How often each rank is replaced. It ends if one fails again; 0: none is replaced."""
    start_timeout: float
    """Seconds for the ranks to ask for the first epoch, and for replacements that are needed."""


class ElasticJob(Job):
    """A job on this host that goes on while enough ranks are left.

    In messages and in front of its output, a process has the rank with which the job began, as has
    the one that replaces it. `arguments` are those of ``Job``; `place`: the variables of a rank.
    """

    def __init__(
        self, *arguments: Any, limits: Limits, place: Callable[[Step], dict[str, str]]
    ) -> None:
        super().__init__(*arguments)
        self._path = self._folder / "meeting"
        self._limits, self._place = limits, place
        self._members = Members(limits.least)
        self._meeting = Meeting(self._path)
        self._root = 0  # the process that is rank 0
        self._ended: set[int] = set()
        self._since: float | None = None  # members have been asking

    def run(self) -> int:
        """Run all ranks; return the exit code of the job."""
        try:
            return super().run()
        finally:
            self._meeting.close()

    def _start(self, local: int) -> None:
        self._environments[local] |= {MEETING: str(self._path), MEMBER: str(local)}
        super()._start(local)
        self._members.add(local)

    def _is_first(self, local: int) -> bool:
        return local == self._root

    def _replace(self, local: int) -> None:
        """Start another process for one that has failed."""
        self._starts.append(self._starts[local])
        self._environments.append(dict(self._environments[local]))
        self._allowed.append(self._allowed[local])
        self._start(len(self._starts) - 1)

    def _wait(self) -> int:
        """Wait until the last ranks have ended, or until too few are left."""
        while not self._stopped:
            for member, message in self._meeting.receive(_POLL):
                self._take(member, message)
            if why := self._remove_ended():
                return self._give_up(why)
            if not self._members.current():
                return 0  # others, which still wait, come too late
            if why := self._begin_epoch():
                return self._give_up(why)
        self._end(signal.Signals(self._stopped))
        return 128 + self._stopped

    def _take(self, member: int, message: dict[str, Any]) -> None:
        if not message:
            self._members.forget(member)
        elif member in self._members:
            if "ask" in message:
                self._members.ask(member)
                self._tell_of_waiting()
            elif "state" in message:
                self._members.note_state(member)

    def _tell_of_waiting(self) -> None:
        if self._members.epoch and (waiting := self._members.waiting()):
            for each in self._members.current():
                self._meeting.send(each, waiting=waiting)

    def _remove_ended(self) -> str:
        """Remove processes that have ended, and replace those that failed.

        Return why the job cannot go on; empty if it can.
        """
        self._look()
        ended = [
            local
            for local, process in enumerate(self._processes)
            if process.returncode is not None and local not in self._ended
        ]
        current = self._members.current()
        for local in ended:
            self._ended.add(local)
            self._members.remove(local)
        if set(ended) & set(current):
            for each in self._members.current():
                self._meeting.send(each, lost=self._members.epoch)
        failed = [local for local in ended if local in self._failed]
        if failed and (why := self._members.why_over() or self._why_not_again(failed)):
            return why
        for local in failed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._processes[local].pid, signal.SIGKILL)  # what it started
            self._note(f"rank {self._starts[local].rank} {self._how(local)}; the others go on")
            if self._limits.restarts and len(self._ended) == len(self._failed):
                self._replace(local)  # no rank has come to its end yet
        return ""

    def _why_not_again(self, failed: list[int]) -> str:
        """Return why a rank is not replaced; empty if all are, or none ever is."""
        for local in failed if self._limits.restarts else ():
            rank = self._starts[local].rank
            times = sum(self._starts[each].rank == rank for each in self._failed)
            if times > self._limits.restarts:
                return f"it has failed {times} times, and --restarts is {times - 1}"
        return ""

    def _begin_epoch(self) -> str:
        """Begin the next epoch if it is time; return why it never will be."""
        members, first = self._members, not self._members.epoch
        if not members.asking() or (members.missing() and not first):
            self._since = None  # who is missing is at work, and will see in its next collective
            return ""
        if not first and (why := members.why_over()):
            return why
        if self._since is None:
            self._since = time.monotonic()
        late = time.monotonic() > self._since + self._limits.start_timeout
        ranks = members.decide(at_once=late)
        if not ranks:
            return self._why_late() if late else ""
        self._since, self._root = None, ranks[0]
        port = str(free_port())
        for rank, member in enumerate(ranks):
            variables = self._variables(rank, len(ranks), member) | {"MASTER_PORT": port}
            self._meeting.send(member, epoch=members.epoch, variables=variables)
        if not first:
            self._note("1 rank goes on" if len(ranks) == 1 else f"{len(ranks)} ranks go on")
        self._tell_of_waiting()
        return ""

    def _variables(self, rank: int, size: int, member: int) -> dict[str, str]:
        # What connects with the name of another epoch is refused. The local rank stays: programs
        # choose their accelerator by it before the first epoch.
        start = self._starts[member]
        job = f"{start.job}.{self._members.epoch}"
        local = (start.local_rank, start.local_size)
        return self._place(Step(rank, size, *local, 0, 1, start.host, job))

    def _why_late(self) -> str:
        asking, seconds = self._members.asking(), self._limits.start_timeout
        return (
            f"{asking} of at least {self._members.least} ranks have called init() within "
            f"{seconds:g} s. --start-timeout gives them longer"
        )

    def _give_up(self, why: str) -> int:
        """Print why the job ends, and the failure that led to it; return the exit code."""
        if not self._failed:
            self._note(f"error: {why}; ended all ranks")
            return 1
        newest = list(reversed(self._failed))
        return self._report(next(filter(self._is_cause, newest), newest[0]), f"; {why}")

    def _is_cause(self, local: int) -> bool:
        return self._error_file(local).exists() or self._failed_by_itself(local)

    def _note(self, text: str) -> None:
        with self._output, contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)
