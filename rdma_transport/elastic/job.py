"""The processes of an elastic job on this host: those that die are replaced, and others go on."""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rdma_transport.elastic import MEETING, MEMBER
from rdma_transport.elastic.meeting import Line, Meeting
from rdma_transport.elastic.stopped import Watch
from rdma_transport.errors import BadInputError
from rdma_transport.job import Job
from rdma_transport.slurm import Step
from rdma_transport.sockets import free_port

_POLL = 0.02
_LAST_LINES = 0.1  # seconds, to read those of a rank that has failed


class ElasticJob(Job):
    """The processes of this host. What becomes of them, the ``Leader`` decides.

    It hears of all that they say and of their ends, and its messages to them pass through here. In
    messages and in front of its output, a process has the rank with which it was started, as has
    the one that replaces it. `arguments` are those of ``Job``; `leader`: the connection to it;
    `name`: how messages name it; `place`: the variables of a rank.
    """

    def __init__(
        self,
        *arguments: Any,
        leader: socket.socket,
        name: str,
        place: Callable[[Step], dict[str, str]],
    ) -> None:
        from rdma_transport.settings import read  # takes long
        from rdma_transport.units import parse_seconds

        super().__init__(*arguments)
        self._path = self._folder / "meeting"
        self._place, self._name = place, name
        self._meeting = Meeting()
        self._meeting.listen(_listening(self._path))
        self._leader = self._meeting.add(leader)
        self._ranks: dict[int, Line] = {}  # by the numbers of their processes
        self._root = 0  # the process that is rank 0; -1: it is on another host
        self._watch = Watch(parse_seconds(read().value("PEER_TIMEOUT")))
        self._ended: set[int] = set()
        self._code: int | None = None  # of the job, which has ended

    def run(self) -> int:
        """Run all ranks; return the exit code of the job."""
        try:
            return super().run()
        finally:
            self._meeting.close()

    def _start(self, local: int) -> None:
        self._environments[local] |= {MEETING: str(self._path), MEMBER: str(local)}
        super()._start(local)
        start = self._starts[local]
        self._leader.send(started=local, rank=start.rank, slot=start.local_rank)

    def _is_first(self, local: int) -> bool:
        return local == self._root

    def _replace(self, local: int) -> None:
        """Start another process for one that has failed."""
        self._starts.append(self._starts[local])
        self._environments.append(dict(self._environments[local]))
        self._allowed.append(self._allowed[local])
        self._start(len(self._starts) - 1)

    def _wait(self) -> int:
        """Wait until the job has ended."""
        while not self._stopped:
            for line, message in self._meeting.receive(_POLL):
                if line is self._leader:
                    self._obey(message)
                else:
                    self._relay(line, message)
            if self._code is not None:
                return self._code
            self._end_stopped()
            self._tell_of_ended()
        self._leader.send(stopped=128 + self._stopped)
        self._end(signal.Signals(self._stopped))
        return 128 + self._stopped

    def _relay(self, line: Line, message: dict[str, Any]) -> None:
        """Pass on what a rank says."""
        if not message:
            gone = [local for local, its in self._ranks.items() if its is line]
            for local in gone:
                del self._ranks[local]
                self._leader.send(gone=local)
            return
        local = message.pop("member", None)
        if local not in range(len(self._processes)):
            self._meeting.drop(line)
        elif self._ranks.setdefault(local, line) is not line:  # a process that the member started
            line.send(error="another process of this rank takes part")
        else:
            self._leader.send(said=local, message=message, port=free_port(""))

    def _obey(self, message: dict[str, Any]) -> None:
        """Do as the leader says."""
        if not message:
            self._code = 1
            self._note(
                f"error: {self._name} has ended or cannot be reached any more, and it decides "
                "which ranks go on; ended all ranks of this host"
            )
        elif "to" in message:
            local, told = message["to"], message["message"]
            if "place" in message:
                rank, size, cross_rank, cross_size = message["place"]
                start = self._starts[local]
                # The local rank stays: programs choose their accelerator by it before they begin.
                at = (rank, size, start.local_rank, start.local_size, cross_rank, cross_size)
                host, port = message["meet"]
                # What connects with the name of another epoch is refused.
                step = Step(*at, host, f"{start.job}.{told['epoch']}")
                meet = {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
                told["variables"] = self._place(step) | meet
                self._root = local if rank == 0 else -1 if self._root == local else self._root
            if local in self._ranks:
                self._ranks[local].send(**told)
        elif "replace" in message:
            self._replace(message["replace"])
        elif "note" in message:
            self._note(message["note"])
        elif "end" in message:
            self._code = message["end"]
            if message["why"]:
                self._note(message["why"])

    def _end_stopped(self) -> None:
        """End processes that are stopped: the others wait for them, or have left them."""
        pids = {process.pid: local for local, process in enumerate(self._processes)}
        for pid in self._watch.stopped([pid for pid in pids if pids[pid] not in self._ended]):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self._note(
                f"rank {self._starts[pids[pid]].rank} was stopped for {self._watch.seconds:g} s "
                "(RDMA_TRANSPORT_PEER_TIMEOUT)"
            )

    def _tell_of_ended(self) -> None:
        self._look()
        for local, process in enumerate(self._processes):
            if process.returncode is None or local in self._ended:
                continue
            self._ended.add(local)
            if local not in self._failed:
                self._leader.send(ended=local)
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started
            self._leader.send(ended=local, failure=asdict(self._failure(local, _LAST_LINES)))

    def _note(self, text: str) -> None:
        with self._output, contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def _listening(path: Path) -> socket.socket:
    """Return where ranks reach this launcher. Only the user can: the folder is the job's."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise BadInputError(
            f"cannot listen at {path}: {error.strerror or error}. Set TMPDIR to another folder"
        ) from None
    listener.listen(1024)
    return listener
