"""The plan of a graph, as an immutable value."""

import json
from dataclasses import dataclass
from typing import Any

from graph_analyzer import codec
from graph_analyzer.errors import AnalysisError
from graph_analyzer.records import MODES, VERSION, Edge, Task, Variable


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
        return cls(**codec.read(text))

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
            "tasks": [codec.values(task) for task in self.tasks],
            "edges": [codec.values(edge) for edge in self.edges],
            "variables": [codec.values(variable) for variable in self.variables],
        }

    @property
    def tensors(self) -> tuple[Edge, ...]:
        """The edges that carry a tensor."""
        return tuple(edge for edge in self.edges if not edge.control)

    @property
    def why_empty(self) -> str:
        """Why no tensor crosses between tasks, as a sentence. Empty if one does."""
        if self.tensors:
            return ""
        if self.edges:
            return (
                f"no tensor crosses between tasks: the {len(self.edges)} edges between them are "
                "control dependencies, which carry no bytes"
            )
        homes = sorted({variable.task for variable in self.variables})
        known = f" Its variables are on {', '.join(homes)}." if homes else ""
        return (
            f"no tensor crosses between tasks: all {self.nodes} operations are on one task.{known} "
            "Operations without a device are on the default device or with their variables. "
            "Gradients that collectives exchange (MultiWorkerMirroredStrategy) are in no plan. "
            "Place variables or operations on a second task with tf.device or a strategy, or give "
            "another default device"
        )

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
