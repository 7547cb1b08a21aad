"""Finds the operations of a graph that exchange something between ranks, and where they start.

The place of an operation in the backward pass is the number of operations of that pass in the
longest chain that ends before it. TensorFlow names the scopes of gradients, in graphs of a tape and
of version 1.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

from graph_analyzer.strategies import operation_of
from rdma_transport.exchange import ATTRIBUTE, Exchange

_GRADIENT = re.compile(r"(^|/)gradient(_tape|s(_[0-9]+)?)/")
_WITHIN = {
    "If": "conditional",
    "StatelessIf": "conditional",
    "Case": "conditional",
    "StatelessCase": "conditional",
    "While": "loop",
    "StatelessWhile": "loop",
}


@dataclass(frozen=True)
class Found:
    """An operation that exchanges something."""

    exchange: Exchange
    operation: str
    dtype: int
    """The number of the type of what a rank gives."""
    start: float | None
    """Its place, as a part of the longest chain of the backward pass; ``None`` without such."""
    within: str | None
    """``conditional`` or ``loop``, if it does not run once in each step."""


@dataclass(frozen=True)
class _Place:
    """The same, while the longest chain is not known."""

    exchange: Exchange
    operation: str
    dtype: int
    start: int
    within: str | None
    outside: str | None
    """What the function is in to which the operation belongs."""


class _Body:
    """The nodes of a graph or of a function."""

    def __init__(self, nodes: Iterable[Any], of: dict[str, "_Body"]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._of = of  # all functions

    @cached_property
    def exchanges(self) -> bool:
        """Whether a node, or one of a function that it calls, exchanges something."""
        return any(
            ATTRIBUTE in node.attr or any(each.exchanges for each in self._called(node))
            for node in self._nodes.values()
        )

    @cached_property
    def longest(self) -> int:
        """The longest chain of the backward pass."""
        return max(self._ends.values(), default=0)

    @cached_property
    def _all(self) -> int:
        """The longest chain of any operations."""
        return max(self._chains(everything=True).values(), default=0)

    @cached_property
    def _ends(self) -> dict[str, int]:
        return self._chains(everything=False)

    def places(
        self, before: int = 0, within: str | None = None, outside: str | None = None
    ) -> Iterator["_Place"]:
        """Yield the operations. `before` is the place of the body, which is `within` another."""
        for node in self._nodes.values():
            called = [each for each in self._called(node) if each.exchanges]
            if ATTRIBUTE not in node.attr and not called:
                continue
            start = before + self._ends[node.name] - self._length(node, everything=False)
            if ATTRIBUTE in node.attr:
                exchange = Exchange.from_text(node.attr[ATTRIBUTE].s)
                kind = operation_of(node.op) or _snake(node.op.removeprefix("RdmaTransport"))
                yield _Place(exchange, kind, node.attr["T"].type, start, within, outside)
            for each in called:
                yield from each.places(start, within or _WITHIN.get(node.op), within)

    def _called(self, node: Any) -> list["_Body"]:
        names = [
            each.name
            for _, value in sorted(node.attr.items(), key=lambda item: item[0])  # as on all ranks
            for each in (value.func, *value.list.func)
            if each.name
        ]
        return [self._of[name] for name in names if name in self._of]

    def _length(self, node: Any, everything: bool) -> int:
        """Return how many operations a node adds to a chain."""
        if ATTRIBUTE in node.attr:
            return 0
        counts = everything or _GRADIENT.search(node.name) is not None
        inner = [each._all if counts else each.longest for each in self._called(node)]
        return max(inner, default=int(counts))

    def _chains(self, everything: bool) -> dict[str, int]:
        """Return for each node the longest chain that ends with it."""
        before = {name: self._before(node) for name, node in self._nodes.items()}
        ends: dict[str, int] = {}
        for name in TopologicalSorter(before).static_order():
            length = self._length(self._nodes[name], everything)
            ends[name] = length + max((ends[each] for each in before[name]), default=0)
        return ends

    def _before(self, node: Any) -> list[str]:
        """Return the nodes that come before one; not those that close a loop."""
        names = [each.removeprefix("^").partition(":")[0] for each in node.input]
        known = [self._nodes[each] for each in names if each in self._nodes]
        return [each.name for each in known if each.op != "NextIteration"]


def find(graph_def: Any) -> list[Found]:
    """Return the operations that exchange something, in the order of their places."""
    bodies: dict[str, _Body] = {}
    for function in graph_def.library.function:
        bodies[function.signature.name] = _Body(function.node_def, bodies)
    body = _Body(graph_def.node, bodies)
    if not body.exchanges:
        return []
    places = [place for place in body.places() if place.exchange.expected is not False]
    places.sort(key=lambda place: place.start)  # which keeps the order of those at one place
    longest = body.longest
    return [
        Found(
            place.exchange,
            place.operation,
            place.dtype,
            place.start / longest if longest else None,
            place.outside if place.exchange.expected else place.within,
        )
        for place in places
    ]


def _snake(name: str) -> str:
    """Return ``all_reduce`` for ``AllReduce``."""
    return re.sub("(?<!^)(?=[A-Z])", "_", name).lower()
