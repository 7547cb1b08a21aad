"""What an examination is about, and what several checks look at."""

import json
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from graph_analyzer.errors import AnalysisError
from graph_analyzer.plan import Plan, Task
from graph_analyzer.units import parse_size
from rdma_transport import _native
from rdma_transport.doctor.surroundings import Surroundings
from rdma_transport.settings import Environment, read

CHANNELS_PER_PEER = 2  # each side may have made one


@dataclass(frozen=True)
class Need:
    """What a plan asks of one task, in bytes; ``peers`` are the tasks it exchanges tensors with."""

    task: str
    slots: int
    sources: int
    peers: int
    largest: int

    @property
    def tensors(self) -> int:
        """Both arenas."""
        return self.slots + self.sources

    def locked(self, ring: int) -> int:
        """What a card pins: both arenas, and ring and mirror of each channel."""
        return self.tensors + 2 * ring * CHANNELS_PER_PEER * self.peers


def need_of(path: Path, task: str) -> Need:
    """Return the need of a task, or of the neediest, in a file that ``plan --json`` wrote.

    Raise ``AnalysisError`` if it is none, or if it has no such task.
    """
    from graph_analyzer.sources import read_text

    plan = Plan.from_json(read_text(path))
    if not plan.tasks:
        raise AnalysisError(f"{path}: the plan has no task")
    chosen = max(plan.tasks, key=lambda each: each.slot_bytes + each.source_bytes)
    if task:
        chosen = _named(plan, task)
    ends = [(edge.source, edge.destination) for edge in plan.tensors]
    others = {b if a == chosen.name else a for a, b in ends if chosen.name in (a, b)}
    sizes = [
        edge.bytes or 0 for edge in plan.tensors if chosen.name in (edge.source, edge.destination)
    ]
    return Need(
        chosen.name, chosen.slot_bytes, chosen.source_bytes, len(others), max(sizes, default=0)
    )


def _named(plan: Plan, task: str) -> Task:
    wanted = task.replace("/replica:0", "").rstrip("/")
    for each in plan.tasks:
        if each.name.replace("/replica:0", "") == wanted:
            return each
    there = ", ".join(each.name.replace("/replica:0", "") for each in plan.tasks)
    raise AnalysisError(f"--task {task}: the plan has no such task; there are {there}")


@dataclass(frozen=True)
class Case:
    """One examination. ``required``: the fabric that must be there, or empty.

    ``given`` are the settings as the user has them, ``environment`` what is examined with.
    """

    required: str = ""
    need: Need | None = None
    peer: str = ""
    quick: bool = False
    wait: float = 10.0
    surroundings: Surroundings = field(default_factory=Surroundings)
    given: Environment = field(default_factory=read)
    environment: Environment = field(default_factory=read)

    @cached_property
    def survey(self) -> dict[str, Any]:
        """What the verbs fabric finds; keys as in ``native/fabric/verbs/survey.cc``."""
        found: dict[str, Any] = json.loads(_native.survey_json())
        return found

    @property
    def fabric(self) -> str:
        """``auto``, ``shm``, ``verbs`` or ``grpc``."""
        return self.environment.value("FABRIC").lower()

    @property
    def malformed_devices(self) -> str:
        """What is wrong with RDMA_TRANSPORT_DEVICES, which only the fabric understands."""
        error: str = self.survey["error"]
        known = self.survey["ports"] or not error.startswith("RDMA_TRANSPORT_DEVICES=")
        return "" if known else error

    @property
    def port(self) -> dict[str, Any] | None:
        """The port that tasks would use, as the survey describes it."""
        return next((port for port in self.survey["ports"] if port["chosen"]), None)

    @property
    def has_hardware(self) -> bool:
        """Whether there is any RDMA device, usable or not."""
        return bool(self.survey["ports"] or self.surroundings.names("/sys/class/infiniband"))

    def size(self, name: str) -> int:
        """A setting that is a size, in bytes; 0 where it is ``auto`` or no size."""
        try:
            return parse_size(self.environment.value(name))
        except AnalysisError:  # the check of the settings says so
            return 0

    @property
    def arena_limit(self) -> int:
        """Bytes that tensors and slots may take together: as the native library computes it.

        The doctor knows no cluster: with ``auto``, tasks on one host share this.
        """
        given = self.size("ARENA_SIZE")
        if given:
            return given
        total = self.surroundings.meminfo("MemTotal")
        limit = self.surroundings.memory_limit()
        return (total if limit is None else min(total, limit[0])) // 4 * 3


def set_aside(given: Environment) -> Environment:
    """Take values that cannot be used out of this process's environment; return what is left.

    So that one bad value, which its own check reports, does not hide what else is wrong.
    """
    left = given
    while left.error:
        names = re.findall(r"RDMA_TRANSPORT_\w+", left.error.partition("'")[0])
        if not names:
            break
        for name in names:
            os.environ.pop(name, None)
        left = read()
    return left


def require(fabric: str) -> None:
    """Let this process, and those it starts, use that fabric alone."""
    os.environ["RDMA_TRANSPORT_FABRIC"] = fabric
