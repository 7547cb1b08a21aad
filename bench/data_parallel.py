"""Measures data-parallel training steps of whole models, over ours and over what others use.

A system is a library that reduces gradients. Each trains in processes of its own, one for each
rank, which `bench.support.data_parallel_rank` runs. All systems of a layout stay started, and take
turns; those whose threads poll while they wait for a turn are stopped meanwhile. A turn has steps
that reduce, and as many of the same ranks that do not: the difference of the medians is the
communication that is not hidden behind the computation. As many others only reduce gradients that
are there from the start, which is what could be hidden.

Each rank keeps to its share of the processors, and its threads are as many. The share is the same
for one rank as for many, unless there are fewer processors than ranks: those keep to none.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import rdma_transport
from rdma_transport.exchange import hidden_share

from .data_parallel_cases import Case
from .support import python
from .support.child import Child
from .support.exit import NotAvailableError
from .support.hosts import HERE, Place
from .support.mpi import mpirun_words
from .support.namespaces import Host, Hosts, UnavailableError

# What can be measured beside our own, and what it is called.
BESIDE = {
    "unchanged": "what run --data-parallel does over rdma",
    "horovod-gloo": "Horovod over gloo",
    "horovod-mpi": "Horovod over MPI",
    "strategy-grpc": "MultiWorkerMirroredStrategy over gRPC",
    "strategy-rdma": "MultiWorkerMirroredStrategy over rdma",
    "ddp": "PyTorch's DistributedDataParallel over gloo",
}
OURS, ALONE = "rdma", "alone"
# Values of the setting GRADIENTS, in the processes of OURS, which has the setting as it is.
SCHEMES = {"dense": "dense gradients", "factors": "gradients as factors"}
POLLING = ("horovod-gloo", "horovod-mpi")
ROUNDS = 3
TURN_SECONDS = 1.0  # of steps, about
LEAST, MOST = 2, 60  # steps of a turn
START_SECONDS, ANSWER_SECONDS = 180.0, 300.0
_FACE = Path(rdma_transport.__file__).parent / "horovod" / "as_horovod"


@dataclass(frozen=True)
class Layout:
    """Ranks on one host, or on each of two that share no memory, by a link of a rate."""

    name: str
    ranks: int
    hosts: int = 1
    rate: str = ""  # "": without a limit

    @property
    def oversubscribed(self) -> bool:
        """Whether there are fewer processors than ranks."""
        return self.ranks > len(os.sched_getaffinity(0))


def share_of(layouts: Sequence[Layout]) -> int:
    """Return the processors of each rank, in all layouts that are not oversubscribed."""
    most = max((each.ranks for each in layouts if not each.oversubscribed), default=1)
    return len(os.sched_getaffinity(0)) // most


def parse_layout(text: str) -> Layout:
    """Return the layout of "2", "2x1" (2 hosts with a rank each) or "2x1@1gbit".

    Raise ValueError.
    """
    size, _, rate = text.partition("@")
    hosts, _, each = size.rpartition("x")
    if hosts not in ("", "2") or not each.isdecimal() or int(each) < 1 or (rate and not hosts):
        raise ValueError(f"'{text}' is not RANKS, 2xRANKS or 2xRANKS@RATE")
    return Layout(text, int(hosts or 1) * int(each), int(hosts or 1), rate)


@dataclass
class Team:
    """The processes of a system, of which rank 0 answers; under mpirun it tells the others."""

    system: str
    children: list[Child]
    pids: list[int] = field(default_factory=list)

    def ask(self, request: dict[str, Any] | None, seconds: float = ANSWER_SECONDS) -> Any:
        """Return rank 0's answer to a request, or its first one; stop the ranks if they poll."""
        self._signal(signal.SIGCONT)
        if request is not None:
            for child in self.children:
                child.say(request)
        answers = [child.read(seconds) for child in self.children]
        if request is None:
            self.pids = [pid for answer in answers for pid in answer.get("pids", [])]
        self._signal(signal.SIGSTOP)
        return answers[0]

    def _signal(self, number: signal.Signals) -> None:
        if self.system in POLLING:
            for pid in self.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def end(self) -> None:
        """End all processes."""
        self._signal(signal.SIGCONT)
        for child in self.children:
            child.end()


def why_not(system: str, layout: Layout) -> str:
    """Return why a system cannot be measured; empty if nothing is known to be missing."""
    if system.startswith("horovod") and find_spec("horovod") is None:
        return "Horovod is not installed"
    if system == "horovod-mpi" and shutil.which("mpirun") is None:
        return "there is no mpirun"
    if system == "horovod-mpi" and layout.hosts > 1:
        return "mpirun starts processes of another host by ssh"
    if system.startswith("strategy") and find_spec("tf_keras") is None:
        return "tf-keras is not installed"
    if system == "ddp" and find_spec("torch") is None:
        return "PyTorch is not installed"
    if system == OURS and not _FACE.exists():
        return "this installation has no horovod interface"
    return ""


def start(
    system: str, layout: Layout, share: int, places: Sequence[Place], environment: Mapping[str, str]
) -> Team:
    """Start all ranks of a system; `places` has that of each rank, `share` as of share_of()."""
    addresses = [place.address() for place in places]
    host, _, port = addresses[0].rpartition(":")
    shared = dict(environment) | {
        "WORLD_SIZE": str(layout.ranks),
        "LOCAL_WORLD_SIZE": str(layout.ranks // layout.hosts),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": secrets.token_hex(8),
        "PYTHONPATH": os.pathsep.join([str(python.TOP), os.environ.get("PYTHONPATH", "")]),
    }
    if system == OURS:
        shared["PYTHONPATH"] = os.pathsep.join([str(_FACE), shared["PYTHONPATH"]])
    words = [*python.module("support.data_parallel_rank"), system]
    if system == "horovod-mpi":
        binding = {"HOROVOD_CPU_OPERATIONS": "MPI", "HOROVOD_CONTROLLER": "mpi"}
        become = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
        mpirun = mpirun_words(str(shutil.which("mpirun")), layout.ranks)
        again = ["-c", become, *mpirun, sys.executable, *words]
        return Team(system, [Child(system, again, shared | binding, place=places[0])])
    children = []
    for rank, place in enumerate(places):
        own = shared | _variables(system, rank, layout, share, addresses)
        children.append(Child(f"{system}, rank {rank}", words, own, place=place))
    return Team(system, children)


def _variables(
    system: str, rank: int, layout: Layout, share: int, addresses: Sequence[str]
) -> dict[str, str]:
    """What one rank has in its environment besides."""
    local_size = layout.ranks // layout.hosts
    place = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local_size),
        "SIZE": str(layout.ranks),
        "LOCAL_SIZE": str(local_size),
        "CROSS_RANK": str(rank // local_size),
        "CROSS_SIZE": str(layout.hosts),
    }
    own = {name: place[name] for name in ("RANK", "LOCAL_RANK")}
    if not layout.oversubscribed:
        allowed = sorted(os.sched_getaffinity(0))
        mine = allowed[rank * share : (rank + 1) * share]
        own |= {"BENCH_PROCESSORS": ",".join(map(str, mine)), "OMP_NUM_THREADS": str(share)}
    if system == "horovod-gloo":
        host, _, port = addresses[0].rpartition(":")
        own |= {f"HOROVOD_{name}": value for name, value in place.items()}
        own |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
        own |= {"HOROVOD_GLOO_TIMEOUT_SECONDS": "3600"}  # it counts pauses, too
        own |= {"HOROVOD_GLOO_RENDEZVOUS_ADDR": host, "HOROVOD_GLOO_RENDEZVOUS_PORT": port}
        own |= {"HOROVOD_GLOO_IFACE": "lo" if layout.hosts == 1 else "eth0"}
        own |= {"HOROVOD_HOSTNAME": addresses[rank].rpartition(":")[0]}
    if system == "ddp" and layout.hosts > 1:
        own |= {"GLOO_SOCKET_IFNAME": "eth0"}
    if system.startswith("strategy"):
        config = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}}
        own["TF_CONFIG"] = json.dumps(config | {"rpc_layer": system.removeprefix("strategy-")})
        own["TF_USE_LEGACY_KERAS"] = "1"
    return own


@dataclass
class Samples:
    """Of one system and case: milliseconds of steps, and bytes per step of a rank."""

    reduced: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    exchange: list[float] = field(default_factory=list)

    def add(self, answer: Mapping[str, Any], kind: str) -> None:
        """Add a turn's; `kind` is that of the steps that reduce."""
        times = answer["times"]
        self.reduced += times[kind]
        self.alone += times["alone"]
        self.exchange += times.get("exchange", [])
        self.sent.append(answer["sent"][kind])

    @property
    def unhidden(self) -> float:
        """Milliseconds of communication that is not hidden."""
        return statistics.median(self.reduced) - statistics.median(self.alone)

    @property
    def hidden(self) -> float | None:
        """The share of communication that is hidden; None if that cannot be told."""
        if not self.exchange:
            return None
        return hidden_share(*map(statistics.median, (self.reduced, self.alone, self.exchange)))


Found = dict[tuple[str, str], Samples]  # by the name of a case, and system


def measure(
    layout: Layout,
    share: int,
    systems: Sequence[str],
    cases: Sequence[Case],
    rounds: int,
    say: Callable[[float, str], None],
    environment: Mapping[str, str],
) -> tuple[Found, dict[str, str], dict[str, str]]:
    """Return the samples of a layout, why systems were skipped, and what failed.

    `share` is as of share_of().
    """
    found: Found = defaultdict(Samples)
    schemes = [each for each in systems if each in SCHEMES]
    systems = [each for each in systems if each not in SCHEMES]
    skipped = {each: why for each in systems if (why := why_not(each, layout))}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        places = stack.enter_context(_places(layout))
        teams: dict[str, Team] = {}

        def ask(system: str, request: dict[str, Any] | None, what: str) -> Any:
            """Return the answer; None if there is none, and drop the system if it failed."""
            try:
                limit = START_SECONDS if request is None else ANSWER_SECONDS
                answer = teams[system].ask(request, limit)
            except (EOFError, TimeoutError) as error:
                failed[f"{system}, {what}"] = _last_lines(str(error))
                teams.pop(system).end()
                return None
            if "skip" in answer:
                skipped[system if request is None else f"{system}, {what}"] = answer["skip"]
                return None
            return answer

        for index, system in enumerate(each for each in systems if each not in skipped):
            say(0.2 * index / len(systems), f"{layout.name}: starting {system}")
            team = start(system, layout, share, places, environment)
            teams[system] = team
            stack.callback(team.end)
            if ask(system, None, "start") is None:
                teams.pop(system, None)
        for index, case in enumerate(cases):
            name = case.name
            say(0.2 + 0.8 * index / len(cases), f"{layout.name}: {name}")
            ready: dict[str, int] = {}
            for system in list(teams):
                own = {OURS: schemes}.get(system, [])
                request = {"case": case.model, "batch": case.batch, "schemes": own}
                if ask(system, request, name) is None:
                    continue
                if (answer := ask(system, {"steps": LEAST}, name)) is None:
                    continue
                step = (answer["times"]["reduced"][-1] + answer["times"]["alone"][-1]) / 1e3
                ready[system] = max(LEAST, min(MOST, round(TURN_SECONDS / step)))
            for system in list(ready) * rounds:
                if system not in teams:
                    continue
                if (answer := ask(system, {"steps": ready[system]}, name)) is None:
                    continue
                found[name, system].add(answer, "reduced")
                for scheme in schemes if system == OURS else []:
                    found[name, scheme].add(answer, scheme)
    return dict(found), skipped, failed


@contextlib.contextmanager
def _places(layout: Layout) -> Iterator[list[Place]]:
    """The place of each rank; those on one host are neighbors."""
    if layout.hosts == 1:
        yield [HERE] * layout.ranks
        return
    with ExitStack() as stack:
        try:
            hosts = Hosts(Host)
            stack.callback(hosts.end)
            for host in hosts.both:
                host.limit(layout.rate)
        except UnavailableError as error:
            raise NotAvailableError(str(error)) from None
        each = layout.ranks // layout.hosts
        yield [host for host in hosts.both for _ in range(each)]


def _last_lines(text: str, count: int = 3) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return " / ".join([lines[0], *lines[1:][-count:]])
