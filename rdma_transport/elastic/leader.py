"""Who decides which ranks take part in an elastic job: one thread, in the first launcher.

All launchers connect to it, its own too, and tell it of their ranks. Nobody else decides, so of the
two halves of a network that falls apart, at most one goes on.
"""

import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rdma_transport.elastic.greeting import Greeting
from rdma_transport.elastic.meeting import Line, Meeting
from rdma_transport.elastic.members import Members
from rdma_transport.job import Failure

_POLL = 0.1
_HELLO = 5.0  # seconds, for a connection to say what it wants
_LAST = 1.0


@dataclass(frozen=True)
class Limits:
    """What an elastic job may do."""

    least: int
    """It ends if fewer ranks are left."""
    most: int
    """So many ranks there may be; others wait."""
    restarts: int
    """How often each rank is replaced. It ends if one fails again; 0: none is replaced."""
    start_timeout: float
    """Seconds for the ranks to ask for the first epoch, and for replacements that are needed."""


@dataclass(eq=False)
class _Host:
    """One launcher."""

    line: Line
    address: str  # at which others reach its ranks
    node: int
    slots: int  # it has begun when it has started so many ranks
    started: int = 0
    leaves: bool = False
    members: dict[int, int] = field(default_factory=dict)  # of its processes that have not ended


@dataclass
class _Process:
    """What a member is."""

    host: _Host
    local: int  # its number there
    rank: int  # with which it was started
    slot: int  # its local rank
    port: int = 0  # free on its host


class Leader:
    """Takes what launchers tell, and says who takes part.

    `own`: the connection to this process' launcher. `address`: this host's. `nodes`: how many ranks
    the launchers with which the job begins start, by their numbers; this process' has number 0.
    """

    def __init__(
        self, limits: Limits, own: socket.socket, address: str, nodes: Mapping[int, int]
    ) -> None:
        self._thread = threading.Thread(target=self._run, name="elastic_leader", daemon=True)
        self._limits, self._address, self._expected = limits, address, nodes
        self._members = Members(limits.least, limits.most)
        self._meeting = Meeting()
        self._greeting = Greeting(nodes)
        self.job = self._greeting.job
        """The name of the job."""
        self._own = self._meeting.add(own)
        self._hosts = {self._own: _Host(self._own, address, 0, nodes.get(0, 0))}
        self._processes: dict[int, _Process] = {}  # of the members
        self._failures: list[Failure] = []
        self._times: dict[int, int] = {}  # that ranks were replaced
        self._complete = False  # a rank has come to its end: none is replaced any more
        self._progress = 0  # steps, for processes that are to come
        self._since: float | None = None  # members have been asking
        self._began = time.monotonic()
        self._listed: Mapping[int, int] | None = None
        self._over = False

    def listen(self, listener: socket.socket) -> None:
        """Let launchers of other hosts connect. Call it before ``start()``."""
        self._meeting.listen(listener)

    def list_nodes(self, nodes: Mapping[int, int]) -> None:
        """Let launchers leave whose numbers are not among these. From any thread."""
        self._listed = dict(nodes)

    def start(self) -> None:
        """Begin to decide."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the job, which that of this process' launcher is, too."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over:
                for line, message in self._meeting.receive(_POLL):
                    self._take(line, message)
                if self._over:
                    break
                self._let_leave()
                self._drop_silent()
                if self._complete and not self._members.current():
                    self._finish(0, "")  # others, which still wait, come too late
                elif why := self._begin_epoch():
                    self._give_up(why)
            self._drain()
        finally:
            self._meeting.close()  # the launchers notice

    def _take(self, line: Line, message: dict[str, Any]) -> None:
        host = self._hosts.get(line)
        if self._over:
            return
        try:
            if host is None:
                self._welcome(line, message)
            elif not message:
                self._lose(host)
            elif "stopped" in message:
                self._stop(host, int(message["stopped"]))
            elif "started" in message:
                self._add(host, int(message["started"]), int(message["rank"]), message["slot"])
            elif "ended" in message:
                self._remove(host, message["ended"], message.get("failure"))
            elif "said" in message or "gone" in message:
                self._hear(host, message)
        except (OSError, ValueError, KeyError, TypeError):
            line.send(error="it sent something else than a launcher of this version does")
            self._meeting.drop(line)
            if host is not None:
                self._lose(host)

    # --- Launchers ---

    def _welcome(self, line: Line, message: dict[str, Any]) -> None:
        """Take in a launcher, instead of one with the same number."""
        hello = self._greeting.answer(line, message)
        if hello is None:
            return
        peer = line.socket.getpeername()[0]
        # This host's own address is of no use to others.
        address = self._address if peer.startswith("127.") or peer == "::1" else peer
        for other in [each for each in self._hosts.values() if each.node == hello.node]:
            other.line.send(end=1, why=f"error: another launcher has --node-rank {hello.node}")
            self._meeting.drop(other.line)
            self._lose(other)
        if not self._over:
            self._hosts[line] = _Host(line, address, hello.node, hello.slots)

    def _drop_silent(self) -> None:
        for line in list(self._meeting.lines):
            if line not in self._hosts and time.monotonic() > line.since + _HELLO:
                self._meeting.drop(line)

    def _stop(self, host: _Host, code: int) -> None:
        if host.line is self._own:
            self._finish(code, "error: the launcher that decides which ranks go on was stopped")
        else:
            self._meeting.drop(host.line)
            self._lose(host)

    def _lose(self, host: _Host) -> None:
        """Go on without a launcher and its ranks."""
        del self._hosts[host.line]
        if host.line is self._own:
            self._over = True  # there is nobody to tell
            return
        lost = [self._processes[number].rank for number in host.members.values()]
        self._forget(list(host.members.values()))
        if not lost:
            return
        what = f"host {host.address} is lost, with {_names(lost)}"
        self._failures += [Failure(rank, f"is lost with its host {host.address}", 1, False, [])
                           for rank in lost]  # fmt: skip
        self._say_or_give_up(what, self._members.why_over())

    def _let_leave(self) -> None:
        """Let launchers leave whose hosts are not listed any more."""
        listed, self._listed = self._listed, None
        if listed is None:
            return
        self._greeting.expect(listed)
        if not self._members.epoch:
            self._expected = dict(listed)
        for host in self._hosts.values():
            host.leaves = host.line is not self._own and host.node not in listed
            for number in host.members.values():
                self._members.leave(number, host.leaves)
        self._dismiss()
        self._tell_of_waiting()

    def _dismiss(self) -> None:
        """End launchers that are to leave, once none of their ranks takes part."""
        current = set(self._members.current())
        for host in [each for each in self._hosts.values() if each.leaves]:
            if not self._members.epoch or current.isdisjoint(host.members.values()):
                host.line.send(end=0, why=f"host {host.address} is not listed any more")
                self._meeting.drop(host.line)
                del self._hosts[host.line]
                self._forget(list(host.members.values()))
                self._note(f"host {host.address} has left")

    # --- Ranks ---

    def _add(self, host: _Host, local: int, rank: int, slot: int) -> None:
        number = len(self._processes)
        self._processes[number] = _Process(host, local, rank, slot)
        host.members[local] = number
        host.started += 1
        if self._members.takes_more:
            self._members.add(number)
            self._members.leave(number, host.leaves)

    def _hear(self, host: _Host, message: dict[str, Any]) -> None:
        """Take what a rank says."""
        gone = "gone" in message
        number = host.members.get(int(message["gone" if gone else "said"]))
        if number is None or number not in self._members:
            return  # it has ended, or comes too late
        said = message.get("message", {})
        if gone:
            self._members.forget(number)
        elif "ask" in said:
            self._processes[number].port = int(message["port"])
            self._members.ask(number)
            self._tell_of_waiting()
        elif "state" in said:
            self._members.note_state(number)
            self._tell_of_waiting()
        elif "progress" in said:
            self._progress = int(said["progress"])
        elif "ask_progress" in said:
            self._send(number, progress=self._progress)
        elif "complete" in said:
            self._members.take_no_more()

    def _tell_of_waiting(self) -> None:
        if self._members.epoch and (waiting := self._members.waiting()):
            for each in self._members.current():
                self._send(each, waiting=waiting)

    def _send(self, number: int, **message: Any) -> None:
        process = self._processes[number]
        process.host.line.send(to=process.local, message=message)

    def _forget(self, numbers: list[int]) -> None:
        """Remove members that have ended, and tell the others of their epoch."""
        lost = set(numbers) & set(self._members.current())
        for number in numbers:
            self._members.remove(number)
        for each in self._members.current() if lost else ():
            self._send(each, lost=self._members.epoch)

    def _remove(self, host: _Host, local: int, failure: dict[str, Any] | None) -> None:
        """Remove a process that has ended, and replace it if it failed."""
        self._forget([host.members.pop(local)])
        if failure is None:
            self._complete = True
            return
        failed = Failure(**failure)
        self._failures.append(failed)
        times = self._times[failed.rank] = self._times.get(failed.rank, 0) + 1
        why = self._members.why_over()
        if not why and 0 < self._limits.restarts < times:
            why = f"it has failed {times} times, and --restarts is {times - 1}"
        self._say_or_give_up(f"rank {failed.rank} {failed.how}", why)
        wanted = not (self._complete or self._over or host.leaves) and self._members.takes_more
        if self._limits.restarts and wanted:
            host.line.send(replace=local)

    def _say_or_give_up(self, what: str, why: str) -> None:
        """Say what has happened, or why the job cannot go on after it."""
        if why:
            self._give_up(why)
        else:
            self._note(f"{what}; the others go on")

    # --- Epochs ---

    def _begin_epoch(self) -> str:
        """Begin the next epoch if it is time; return why it never will be."""
        members, first = self._members, not self._members.epoch
        if not members.asking() or (members.missing() and not first):
            self._since = None  # who is missing is at work, and will see in its next collective
            return self._why_no_host()
        if not first and (why := members.why_over()):
            return why
        if self._since is None:
            self._since = time.monotonic()
        late = time.monotonic() > self._since + self._limits.start_timeout
        if first and not late and not self._all_began():
            return ""
        numbers = members.decide(at_once=late)
        if not numbers:
            return self._why_late() if late else ""
        self._since = None
        self._place(numbers)
        self._dismiss()
        if not first:
            count = len(numbers)
            self._note("1 rank goes on" if count == 1 else f"{count} ranks go on")
        self._tell_of_waiting()
        return ""

    def _all_began(self) -> bool:
        """Return whether all ranks with which the job begins are started."""
        hosts = {each.node: each for each in self._hosts.values()}
        return all(node in hosts and hosts[node].started >= hosts[node].slots
                   for node in self._expected)  # fmt: skip

    def _place(self, numbers: list[int]) -> None:
        """Tell members their places: hosts in the order of their lowest ranks."""
        processes = [self._processes[number] for number in numbers]
        root, hosts = processes[0], dict.fromkeys(each.host for each in processes)
        for rank, process in enumerate(processes):
            with_slot = {each.host for each in processes if each.slot == process.slot}
            alike = [host for host in hosts if host in with_slot]
            place = [rank, len(numbers), alike.index(process.host), len(alike)]
            process.host.line.send(
                to=process.local,
                message={"epoch": self._members.epoch},
                place=place,
                meet=[root.host.address, root.port],
            )

    def _why_no_host(self) -> str:
        """Return that nobody has come to begin; empty if some have."""
        limit = self._limits.start_timeout
        if self._processes or time.monotonic() < self._began + limit:
            return ""
        return f"no host has connected within {limit:g} s. --start-timeout gives them longer"

    def _why_late(self) -> str:
        asking, seconds = self._members.asking(), self._limits.start_timeout
        return (
            f"{asking} of at least {self._members.least} ranks have called init() within "
            f"{seconds:g} s. --start-timeout gives them longer"
        )

    # --- The end ---

    def _give_up(self, why: str) -> None:
        """End the job because of the last failure that is no consequence of another one."""
        if not self._failures:
            self._finish(1, f"error: {why}; ended all ranks")
            return
        newest = self._failures[::-1]
        cause = next((each for each in newest if each.is_cause), newest[0])
        others = ["ended the other ranks"] if len(self._processes) > 1 else []
        self._finish(cause.code, cause.report(why, *others))

    def _finish(self, code: int, why: str) -> None:
        """End all launchers; print why, in full where the job was started."""
        if self._over:
            return
        for host in self._hosts.values():
            own = host.line is self._own
            host.line.send(end=code, why=why if own else why.partition("\n")[0])
        self._over = True

    def _drain(self) -> None:
        """Wait a moment for other launchers: what closes with messages unread may lose its own."""
        self._meeting.drop(self._own)
        deadline = time.monotonic() + _LAST
        while any(line in self._hosts for line in self._meeting.lines):
            if time.monotonic() > deadline:
                return
            self._meeting.receive(_POLL)

    def _note(self, text: str) -> None:
        self._own.send(note=text)


def _names(ranks: list[int]) -> str:
    numbers = [str(rank) for rank in sorted(ranks)]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
