"""The inputs of one run of the doctor, shared by the checks."""

import json
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from graph_analyzer.plan import Plan
from graph_analyzer.records import Task
from rdma_transport import _native
from rdma_transport.doctor.system import System
from rdma_transport.errors import BadInputError
from rdma_transport.files import read_text
from rdma_transport.settings import Environment, read
from rdma_transport.units import parse_size


@dataclass(frozen=True)
class Need:
    """The memory that a plan needs on one task; ``peers`` counts the tasks it communicates with."""

    task: str
    slots: int
    sources: int
    peers: int
    largest: int

    @property
    def tensors(self) -> int:
        """The bytes of both arenas."""
        return self.slots + self.sources

    def locked(self, ring: int) -> int:
        """The bytes that a card pins: both arenas, and ring and mirror of each peer's channel."""
        return self.tensors + 2 * ring * self.peers


def need_of(path: Path, task: str) -> Need:
    """Return the need of a task in a file that ``plan --json`` wrote.

    Without ``task``: of the task that needs the most memory. Raises ``BadInputError`` if the file
    is not a plan, or has no such task.
    """
    plan = Plan.from_json(read_text(path))
    if not plan.tasks:
        raise BadInputError(f"{path}: the plan has no task")
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
    raise BadInputError(f"--task {task}: the plan has no such task; it has {there}")


@dataclass(frozen=True)
class Context:
    """One run. ``required`` is the fabric given by --fabric, or empty. ``tf_config`` is JSON.

    ``given`` are the user's settings. ``environment`` are those settings without invalid values.
    """

    required: str = ""
    need: Need | None = None
    peer: str = ""
    tf_config: str = ""
    quick: bool = False
    wait: float = 10.0
    system: System = field(default_factory=System)
    given: Environment = field(default_factory=read)
    environment: Environment = field(default_factory=read)

    @cached_property
    def survey(self) -> dict[str, Any]:
        """What the verbs fabric finds, with the keys of ``native/fabric/verbs/survey.cc``."""
        found: dict[str, Any] = json.loads(_native.survey_json())
        return found

    @cached_property
    def libfabric(self) -> dict[str, Any]:
        """What libfabric offers, with the keys of ``native/fabric/libfabric/survey.cc``."""
        found: dict[str, Any] = json.loads(_native.libfabric_survey_json())
        return found

    @property
    def providers(self) -> list[dict[str, Any]]:
        """The providers of libfabric that tasks would use, from the survey."""
        return [offer for offer in self.libfabric["offers"] if offer["chosen"]]

    @property
    def without_verbs(self) -> str:
        """How tensors reach other hosts if verbs does not, as the rest of a sentence."""
        if self.providers and self.fabric in ("auto", "libfabric"):
            return f"tensors to other hosts use libfabric ({self.providers[0]['provider']})"
        return "tensors to other hosts fall back to gRPC"

    @property
    def fabric(self) -> str:
        """``auto``, ``grpc``, or the name of a fabric."""
        return self.environment.value("FABRIC").lower()

    @property
    def malformed_devices(self) -> str:
        """The error in RDMA_TRANSPORT_DEVICES, which only the fabric can parse."""
        error: str = self.survey["error"]
        known = self.survey["ports"] or not error.startswith("RDMA_TRANSPORT_DEVICES=")
        return "" if known else error

    @property
    def malformed_libfabric(self) -> str:
        """The error in RDMA_TRANSPORT_LIBFABRIC_PROVIDER or _INTERFACE, which only it can parse."""
        error: str = self.libfabric["error"]
        known = self.libfabric["offers"] or not error.startswith("RDMA_TRANSPORT_LIBFABRIC_")
        return "" if known else error

    @property
    def port(self) -> dict[str, Any] | None:
        """The preferred one of the ports that tasks would use, from the survey."""
        return next((port for port in self.survey["ports"] if port["chosen"]), None)

    @property
    def has_hardware(self) -> bool:
        """Whether there is any RDMA device, usable or not."""
        return bool(self.survey["ports"] or self.system.names("/sys/class/infiniband"))

    def size(self, name: str) -> int:
        """Return a setting in bytes; 0 if it is ``auto`` or not a size."""
        try:
            return parse_size(self.environment.value(name))
        except BadInputError:  # the check of the settings reports it
            return 0

    @property
    def arena_limit(self) -> int:
        """The maximum bytes of tensors and slots together, as the native library computes it.

        The doctor does not know the cluster. With ``auto``, tasks on one host share this limit.
        """
        given = self.size("ARENA_SIZE")
        if given:
            return given
        total = self.system.meminfo("MemTotal")
        limit = self.system.memory_limit()
        return (total if limit is None else min(total, limit[0])) // 4 * 3


def set_aside(given: Environment) -> Environment:
    """Remove invalid values from the environment of this process; return what is left.

    One invalid value, which has a check of its own, then does not hide other problems.
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
    """Restrict this process and its children to one fabric."""
    os.environ["RDMA_TRANSPORT_FABRIC"] = fabric
