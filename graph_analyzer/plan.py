"""The plan of a graph, as immutable values."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from graph_analyzer.errors import AnalysisError

VERSION = 1
MODES = ("static", "dynamic", "inline", "grpc")
MUTABILITIES = ("immutable", "variable", "reference variable")
SITE_KINDS = ("kernel", "variable", "constant", "feed", "function argument", "received", "unknown")


@dataclass(frozen=True)
class Site:
    """Where the buffer of a sent tensor is allocated.

    ``through`` are the types of the ops that forward the buffer, from the allocation to the send.
    """

    op: str
    type: str
    kind: str
    through: tuple[str, ...] = ()

    def __str__(self) -> str:
        passed = f" via {', '.join(self.through)}" if self.through else ""
        name = f"{self.op} ({self.type})" if self.op else self.kind
        return name + passed


@dataclass(frozen=True)
class Edge:
    """A tensor that one task sends to another; with ``control``, only a control dependency.

    ``shape`` is ``None`` if the rank is unknown, and a dimension is ``None`` if it is unknown.
    ``bytes`` is the size per step, or ``None`` if the shape does not determine it. The destination
    has ``slots`` buffers for the tensor, of ``slot_bytes`` in total, which include alignment.
    """

    name: str
    source: str
    destination: str
    source_device: str
    destination_device: str
    dtype: str
    shape: tuple[int | None, ...] | None
    bytes: int | None
    mode: str
    reason: str
    mutability: str
    site: Site
    slots: int
    slot_bytes: int
    control: bool = False


@dataclass(frozen=True)
class Task:
    """One task's memory and traffic, in bytes.

    ``slot_bytes`` are registered for the slots of tensors that it receives, ``source_bytes`` for
    the buffers of tensors that it sends. ``sent_bytes`` and ``received_bytes`` are the known bytes
    per step.
    """

    name: str
    slot_bytes: int
    source_bytes: int
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class Variable:
    """A variable, the task that holds it, and ``readers``, the number of other tasks that read it.

    If it is the weight of a MatMul, ``matmul_rows`` is K, the rows that one worker multiplies with
    it, or -1 if K is unknown before the step. Otherwise it is ``None``.
    """

    name: str
    task: str
    dtype: str
    shape: tuple[int | None, ...] | None
    bytes: int
    matmul_rows: int | None
    readers: int


@dataclass(frozen=True)
class Traffic:
    """The number of edges and their known bytes per step; ``unknown`` edges have no known size."""

    edges: int = 0
    bytes: int = 0
    unknown: int = 0

    def plus(self, edge: Edge) -> "Traffic":
        """Return the sum with one more edge."""
        unknown = self.unknown + (edge.bytes is None)
        return Traffic(self.edges + 1, self.bytes + (edge.bytes or 0), unknown)


@dataclass(frozen=True)
class Plan:
    """The plan of a graph: edges, modes, slots, allocation sites and bytes."""

    arena_limit: int
    analysis_seconds: float
    nodes: int
    tasks: tuple[Task, ...]
    edges: tuple[Edge, ...]
    variables: tuple[Variable, ...]
    version: int = VERSION

    @classmethod
    def from_json(cls, text: str | bytes) -> "Plan":
        """Read the output of ``to_json`` or of the native analyzer. Unknown keys are ignored.

        Raises ``AnalysisError`` that names the first error and its location.
        """
        from graph_analyzer import codec  # needs the classes above

        return codec.read_plan(text)

    def to_json(self, indent: int | None = None) -> str:
        """Return JSON that conforms to ``schema.json``."""
        return json.dumps(self.as_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON values of ``to_json``."""
        return {
            "version": self.version,
            "arena_limit": self.arena_limit,
            "analysis_seconds": self.analysis_seconds,
            "nodes": self.nodes,
            "tasks": [_values(task) for task in self.tasks],
            "edges": [_values(edge) for edge in self.edges],
            "variables": [_values(variable) for variable in self.variables],
        }

    @property
    def tensors(self) -> tuple[Edge, ...]:
        """The edges that carry a tensor."""
        return tuple(edge for edge in self.edges if not edge.control)

    @property
    def control_edges(self) -> tuple[Edge, ...]:
        """The edges that carry only a control dependency and no bytes."""
        return tuple(edge for edge in self.edges if edge.control)

    def of_mode(self, mode: str) -> tuple[Edge, ...]:
        """Return the tensors of one mode; raise ``AnalysisError`` for an unknown mode."""
        if mode not in MODES:
            raise AnalysisError(f"unknown mode {mode!r}; use one of {', '.join(MODES)}")
        return tuple(edge for edge in self.tensors if edge.mode == mode)

    def by_mode(self) -> dict[str, Traffic]:
        """Return the traffic per mode, in the order of ``MODES``, including empty modes."""
        found = dict.fromkeys(MODES, Traffic())
        for edge in self.tensors:
            found[edge.mode] = found[edge.mode].plus(edge)
        return found

    def by_link(self) -> dict[tuple[str, str], dict[str, Traffic]]:
        """Return the traffic per (source, destination) and mode, without empty links."""
        links: dict[tuple[str, str], dict[str, Traffic]] = {}
        for edge in self.tensors:
            link = links.setdefault((edge.source, edge.destination), {})
            link[edge.mode] = link.get(edge.mode, Traffic()).plus(edge)
        return links

    def total(self) -> Traffic:
        """Return the traffic of all tensors."""
        return total(self.by_mode())

    @property
    def registered_bytes(self) -> int:
        """The bytes that the plan registers with the fabric, over all tasks."""
        return sum(task.slot_bytes + task.source_bytes for task in self.tasks)

    def exchanged(self) -> tuple[Variable, ...]:
        """Return the variables that other tasks read, which cause traffic in each step."""
        return tuple(variable for variable in self.variables if variable.readers > 0)


def total(modes: dict[str, Traffic]) -> Traffic:
    """Sum the traffic of several modes."""
    edges = sum(traffic.edges for traffic in modes.values())
    known = sum(traffic.bytes for traffic in modes.values())
    return Traffic(edges, known, sum(traffic.unknown for traffic in modes.values()))


def _values(item: Any) -> dict[str, Any]:
    return {name: _value(getattr(item, name)) for name in _names(item)}


def _value(value: Any) -> Any:
    if isinstance(value, Site):
        return _values(value)
    return list(value) if isinstance(value, tuple) else value


def _names(item: Any) -> Iterator[str]:
    return (field.name for field in fields(item))
