"""Rounds of steps of which one operation fails: what the clients saw, and which do not end."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.support.child import Child
from bench.support.cluster import Cluster, free_port
from rdma_transport import live
from tests.support.deadlines import patient

CLIENT = Path(__file__).with_name("abort_client.py")
START_SECONDS = 90
HANG_SECONDS = 30.0  # a step takes milliseconds; a machine may be very busy
MAX_OF_A_LOG = 3000


@dataclass(frozen=True)
class Case:
    """A front end of abort_client.py with its options, and the tasks of its cluster."""

    front_end: str
    jobs: dict[str, int]
    options: dict[str, Any] = field(default_factory=dict)
    message: str = ""  # what the error says, whichever task failed
    peers: bool = False  # each task is a client, as mirrored workers are


TWO, THREE = {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}
EACH, ALL = {"rounds": 1}, {"rounds": 10**9}  # how many share a session
_SHAPE, _TOLD = "shapes of both tensors to match", "told to"
CASES = {
    "initializers-2-each": Case("Sessions", TWO, {"graph": "initializers"} | EACH, _SHAPE),
    "initializers-2-one": Case("Sessions", TWO, {"graph": "initializers"} | ALL, _SHAPE),
    "initializers-3-each": Case("Sessions", THREE, {"graph": "initializers"} | EACH, _SHAPE),
    "initializers-3-one": Case("Sessions", THREE, {"graph": "initializers"} | ALL, _SHAPE),
    "initializers-late": Case(
        "Sessions", THREE, {"graph": "initializers", "delay": 300} | EACH, _SHAPE
    ),
    "crossing-each": Case("Sessions", THREE, {"graph": "crossing"} | EACH, _TOLD),
    "crossing-one": Case("Sessions", THREE, {"graph": "crossing"} | ALL, _TOLD),
    "crossing-late": Case("Sessions", THREE, {"graph": "crossing", "delay": 100} | ALL, _TOLD),
    "registration": Case("Sessions", THREE, {"graph": "refused"} | EACH, "batch dimension"),
    "random": Case("Sessions", THREE, {"graph": "random", "delay": 200, "rounds": 4}),
    "functions": Case("Functions", THREE, {}, _TOLD),
    "coordinator": Case("Coordinator", {"chief": 1, "ps": 1, "worker": 2}, {}, _TOLD),
    "mirrored": Case("Mirrored", {"worker": 3}, peers=True),
    "keras": Case("Keras", {"worker": 2}, peers=True),
}


class HangError(AssertionError):
    """A step did not end; the message says where each process is."""


@dataclass(frozen=True)
class Round:
    """By client: what became of the step that fails, and of the good one after it."""

    failed: list[dict[str, Any]]
    good: list[dict[str, Any]]

    @property
    def errors(self) -> list[str]:
        return [answer["error"] for answer in self.failed]

    @property
    def digests(self) -> list[str]:
        return [answer["digest"] for answer in self.good]


class Players:
    """The tasks and the clients of a case over one protocol."""

    def __init__(
        self,
        case: Case,
        protocol: str,
        seed: int = 0,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.cluster: Cluster | None = None
        self.clients: list[Child] = []
        options = case.options | {"protocol": protocol, "seed": seed}
        environment = environment or {}
        try:
            if case.peers:
                count = case.jobs["worker"]
                spec = {"worker": [f"127.0.0.1:{free_port()}" for _ in range(count)]}
            else:
                self.cluster = Cluster(
                    case.jobs,
                    protocol,
                    environment,
                    without=[("chief", 0)],  # that is the client
                )
                count, spec = 1, self.cluster.spec
            for index in range(count):
                given = json.dumps(options | {"spec": spec, "index": index})
                name = f"client {index}"
                self.clients.append(Child(name, [str(CLIENT), case.front_end, given], environment))
            for client in self.clients:
                client.read(patient(START_SECONDS))
        except BaseException:
            self.end()
            raise

    def play(self, number: int, limit: float = HANG_SECONDS) -> Round:
        """One round; raise HangError if a step does not end within `limit` seconds."""
        failed = self._all(["fail", number], limit)
        self._all(["reset", number], limit)
        return Round(failed, self._all(["good", number], limit))

    def _all(self, command: list[Any], limit: float) -> list[dict[str, Any]]:
        for client in self.clients:
            client.say(command)
        deadline = time.monotonic() + patient(limit)
        try:
            return [client.read(max(deadline - time.monotonic(), 0)) for client in self.clients]
        except TimeoutError:
            what = f"{command[0]}, round {command[1]}: no end after {patient(limit):.0f} s"
            raise HangError(f"{what}\n{self._whereabouts()}") from None

    def _whereabouts(self) -> str:
        for client in self.clients:
            with contextlib.suppress(ProcessLookupError):
                client.signal(signal.SIGUSR1)
        time.sleep(0.5)
        tasks = list(self.cluster.tasks.values()) if self.cluster else []
        return "\n".join(
            f"--- {one.name}\n{log[-MAX_OF_A_LOG:]}\n{_counted(one.pid)}"
            for one, log in ((each, each.logged()) for each in (*self.clients, *tasks))
        )

    def end(self) -> None:
        for client in self.clients:
            client.end()
        if self.cluster is not None:
            self.cluster.end()


def _counted(pid: int) -> str:
    """What its transport counted, without the plan's edges; nothing if it has no server."""
    for server in live.servers():
        if server.pid == pid:
            with contextlib.suppress(ConnectionError):
                return json.dumps({**server.stats(), "plan": None})
    return ""


@contextlib.contextmanager
def playing(case: Case, protocol: str, **keywords: Any) -> Iterator[Players]:
    players = Players(case, protocol, **keywords)
    try:
        yield players
    finally:
        players.end()


@contextlib.contextmanager
def stopping(players: Players, job: str, seconds: float) -> Iterator[None]:
    """One task is stopped while the body runs, for at most `seconds`."""
    assert players.cluster is not None
    pid = players.cluster[job, 0].pid
    os.kill(pid, signal.SIGSTOP)
    # It shall go on even if the body waits for it.
    waking = subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {pid}"])
    try:
        yield
    finally:
        waking.wait()
