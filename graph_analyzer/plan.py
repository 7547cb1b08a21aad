"""What the analyzer decided for a graph, as plain values that do not change."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from graph_analyzer.errors import AnalysisError

VERSION = 1
CLASSES = ("static", "dynamic", "inline", "unsupported")
MUTABILITIES = ("immutable", "variable", "reference variable")
SITE_KINDS = ("kernel", "variable", "constant", "feed", "function argument", "received", "unknown")


@dataclass(frozen=True)
class Site:
    """Where the buffer of a sent tensor is allocated.

    ``through`` are the types of the ops that pass the buffer on, from the allocation to the send.
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
    """One tensor (or, with ``control``, only an order) that goes from one task to another.

    ``shape`` is ``None`` where the rank is unknown, and a dimension is ``None`` where it is
    unknown; ``bytes`` per step is ``None`` where the shape does not give it. ``slots`` buffers of
    ``slot_bytes`` each wait at the destination. ``edge_class`` is ``class`` in JSON.
    """

    name: str
    source: str
    destination: str
    source_device: str
    destination_device: str
    dtype: str
    shape: tuple[int | None, ...] | None
    bytes: int | None
    edge_class: str
    reason: str
    mutability: str
    site: Site
    slots: int
    slot_bytes: int
    control: bool = False


@dataclass(frozen=True)
class Task:
    """One task's memory and traffic, in bytes.

    ``slot_bytes`` are registered for what it receives, ``source_bytes`` for what is born in its
    arena to be sent; ``sent_bytes`` and ``received_bytes`` are those known per step.
    """

    name: str
    slot_bytes: int
    source_bytes: int
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class Variable:
    """A variable, the task that holds it, and the ``readers``: how many other tasks read it.

    ``matmul_rows`` is K, the rows that one worker multiplies with it, where it is the weight of a
    MatMul; -1 where it is such a weight and K is unknown before the step; else ``None``.
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
    """Tensors and their known bytes per step; ``unknown`` of the edges have no known bytes."""

    edges: int = 0
    bytes: int = 0
    unknown: int = 0

    def plus(self, edge: Edge) -> "Traffic":
        """This and one edge more."""
        unknown = self.unknown + (edge.bytes is None)
        return Traffic(self.edges + 1, self.bytes + (edge.bytes or 0), unknown)


@dataclass(frozen=True)
class Plan:
    """What the analyzer decided for a graph: edges, classes, slots, allocation sites, bytes."""

    arena_limit: int
    analysis_seconds: float
    nodes: int
    tasks: tuple[Task, ...]
    edges: tuple[Edge, ...]
    variables: tuple[Variable, ...]
    version: int = VERSION

    @classmethod
    def from_json(cls, text: str | bytes) -> "Plan":
        """Read what ``to_json`` or the native analyzer wrote; keys it does not know are skipped.

        Raises ``AnalysisError`` that names the first place that is wrong.
        """
        from graph_analyzer import codec  # which needs the classes above

        return codec.read_plan(text)

    def to_json(self, indent: int | None = None) -> str:
        """Write JSON that satisfies ``schema.json``."""
        return json.dumps(self.as_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    def as_dict(self) -> dict[str, Any]:
        """Return what ``to_json`` writes, as JSON values."""
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
        """The edges that carry only an order, and no byte."""
        return tuple(edge for edge in self.edges if edge.control)

    def of_class(self, edge_class: str) -> tuple[Edge, ...]:
        """Return the tensors of one of ``CLASSES``; raise ``AnalysisError`` for another name."""
        if edge_class not in CLASSES:
            raise AnalysisError(f"unknown class {edge_class!r}; there are {', '.join(CLASSES)}")
        return tuple(edge for edge in self.tensors if edge.edge_class == edge_class)

    def by_class(self) -> dict[str, Traffic]:
        """Return the traffic per class, in the order of ``CLASSES``; empty classes too."""
        found = dict.fromkeys(CLASSES, Traffic())
        for edge in self.tensors:
            found[edge.edge_class] = found[edge.edge_class].plus(edge)
        return found

    def by_link(self) -> dict[tuple[str, str], dict[str, Traffic]]:
        """Return the traffic per (source, destination) and class; links without tensors are out."""
        links: dict[tuple[str, str], dict[str, Traffic]] = {}
        for edge in self.tensors:
            link = links.setdefault((edge.source, edge.destination), {})
            link[edge.edge_class] = link.get(edge.edge_class, Traffic()).plus(edge)
        return links

    def total(self) -> Traffic:
        """Return the traffic of all tensors."""
        return total(self.by_class())

    @property
    def registered_bytes(self) -> int:
        """Bytes of all tasks that the plan registers with the fabric."""
        return sum(task.slot_bytes + task.source_bytes for task in self.tasks)

    def exchanged(self) -> tuple[Variable, ...]:
        """Return the variables that other tasks read: those that cost traffic each step."""
        return tuple(variable for variable in self.variables if variable.readers > 0)


def total(classes: dict[str, Traffic]) -> Traffic:
    """Sum the traffic of several classes."""
    edges = sum(traffic.edges for traffic in classes.values())
    known = sum(traffic.bytes for traffic in classes.values())
    return Traffic(edges, known, sum(traffic.unknown for traffic in classes.values()))


def _values(item: Any) -> dict[str, Any]:
    return {
        "class" if name == "edge_class" else name: _value(getattr(item, name))
        for name in _names(item)
    }


def _value(value: Any) -> Any:
    if isinstance(value, Site):
        return _values(value)
    return list(value) if isinstance(value, tuple) else value


def _names(item: Any) -> Iterator[str]:
    return (field.name for field in fields(item))
