"""Examines the claims in order, together with the other hosts."""

import contextlib
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import rdma_transport
from rdma_transport.collectives.meeting import MeetingPlace
from rdma_transport.collectives.ranks import Ranks
from rdma_transport.command_line import FAILED, NO_PEER, NOT_AVAILABLE
from rdma_transport.doctor.result import FAIL, Result
from rdma_transport.fabric import Device, FabricError
from rdma_transport.qualify import contract, link, memory, peers, training
from rdma_transport.qualify.context import Context
from rdma_transport.qualify.hosts import Hosts, NoAnswerError, StepError
from rdma_transport.qualify.report import show
from rdma_transport.settings import read

VERSION = 1
CLAIMS: dict[str, Callable[[Context], Result | Iterator[Result]]] = {
    "route": contract.route,
    "order": contract.order,
    "sizes": contract.sizes,
    "speed": contract.speed,
    "memory": memory.memory,
    "killed_peer": peers.killed,
    "stopped_peer": peers.stopped,
    "link": link.link,
    "training": training.training,
}
_COMPARE = {"shell": "rdma-transport doctor    # on each host; and see its log"}


@dataclass(frozen=True)
class Wishes:
    """The options of the command; see ``Context``."""

    seconds: float
    largest: int
    memory: int
    link_down: str
    ask: bool
    training: bool
    wait: float
    fabric: str


@dataclass
class Report:
    """What came of a run. ``refused``: why there are no results, as an error message."""

    results: list[Result] = field(default_factory=list)
    context: Context | None = None
    code: int = 0
    refused: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the document that ``schemas/qualify.json`` describes."""
        given = [each for each in read().settings if each.source != "default"]
        context = self.context
        return {
            "version": VERSION,
            "exit_code": self.code,
            "error": self.refused,
            "seconds": self.seconds,
            "hosts": context.descriptions if context else [],
            "routes": context.routes if context else [],
            "settings": {each.name: each.value for each in given},
            "claims": [result.as_dict() for result in self.results],
            "figures": context.figures if context else {},
        }


def examine(ranks: Ranks, wishes: Wishes, quiet: bool) -> Report:
    """Examine all claims together with the other hosts; print the table unless `quiet`."""
    report = Report()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        try:
            if ranks.rank == 0:
                stack.enter_context(MeetingPlace.at(ranks.host, ranks.port))
            report.context = _met(ranks, wishes)
        except (NoAnswerError, FabricError) as error:
            report.refused, report.code = str(error), NO_PEER
            return report
        except StepError as error:
            report.refused, report.code = str(error), NOT_AVAILABLE
            return report
        report.results = list(_examined(report.context, quiet))
    report.seconds = round(time.monotonic() - began, 1)
    report.code = exit_code(report.results, wishes.fabric)
    lost = [result for result in report.results if result.name == "hosts"]
    if lost and ranks.rank > 0:
        report.refused = lost[0].found  # host 0 may be the one that cannot say it
    if not quiet:
        show(report.context, report.results, report.seconds)
    return report


def exit_code(results: list[Result], required: str) -> int:
    """Return 0 if nothing failed, 4 if a host did not answer, 3 without the fabric, else 1."""
    failed = [result.name for result in results if result.status == FAIL]
    if "hosts" in failed:
        return NO_PEER
    if required and "route" in failed:
        return NOT_AVAILABLE
    return FAILED if failed else 0


def _met(ranks: Ranks, wishes: Wishes) -> Context:
    hosts = Hosts(ranks, wishes.fabric)

    def described() -> dict[str, Any]:
        with Device.open(wishes.fabric or None) as device:
            summary = device.summary
        return {
            "name": socket.gethostname(),
            "address": _address(ranks),
            "rdma_transport": rdma_transport.__version__,
            "kernel": platform.release(),
            "device": summary,
            "seconds": wishes.seconds,
            "largest": wishes.largest,
        }

    # What the first one to come waits for.
    descriptions = hosts.together(described, 0, wishes.wait)
    names = [each["name"] for each in descriptions]
    # Containers, and processes of one host, may have one name.
    hosts.names = [
        name if names.count(name) == 1 else f"{name}#{rank}" for rank, name in enumerate(names)
    ]
    first = descriptions[0]  # all hosts must do the same
    return Context(
        hosts,
        first["seconds"],
        first["largest"],
        wishes.memory,
        wishes.link_down,
        wishes.ask,
        all(hosts.together(lambda: wishes.training, 30)),
        descriptions,
    )


def _address(ranks: Ranks) -> str:
    """The address of this host that the others reach, which is the one towards host 0."""
    family, kind, *_, place = socket.getaddrinfo(ranks.host, ranks.port, type=socket.SOCK_DGRAM)[0]
    if ranks.rank == 0:
        return str(ranks.host)
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def _examined(context: Context, quiet: bool) -> Iterator[Result]:
    for name, claim in CLAIMS.items():
        if not quiet:
            print(f"examining {name}", file=sys.stderr, flush=True)
        try:
            found = claim(context)
            yield from [found] if isinstance(found, Result) else found
        except StepError as error:
            yield Result(name, FAIL, str(error), "it did not work between these hosts", _COMPARE)
            if name == "route":
                return
        except NoAnswerError as error:
            why = f"it left, or hung, while claim '{name}' was examined"
            yield Result("hosts", FAIL, str(error), why, _COMPARE)
            return
