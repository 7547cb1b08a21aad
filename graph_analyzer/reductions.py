"""What the ranks of a data-parallel step exchange, as the operations of its graph say.

Each operation of ``rdma_transport.tensorflow`` has stored what it exchanges and why
(``rdma_transport.exchange``); for TensorFlow's collectives, ``strategies`` finds it in the graph.
Nothing is chosen or estimated here; ``start`` and ``sent`` follow from the graph and from the
number of ranks.
"""

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from graphlib import CycleError
from typing import Any

from graph_analyzer.backward import Found, find
from graph_analyzer.clusters import MAX_TASKS
from graph_analyzer.errors import AnalysisError
from graph_analyzer.functions import is_model, training_step
from graph_analyzer.native import quiet
from graph_analyzer.records import VERSION
from graph_analyzer.sources import graph_def_bytes
from graph_analyzer.strategies import note_collectives, server_protocol
from rdma_transport.exchange import ATTRIBUTE

_NONE = (
    "without one, the plan shows what the ranks of a data-parallel step exchange, but no operation "
    "of this graph does: it was traced by one process alone, or calls nothing of rdma_transport. "
    "Let ranks trace it: rdma-transport run -n 2 -- rdma-transport plan train.py:step, or with "
    "MultiWorkerMirroredStrategy each worker, with its TF_CONFIG"
)
_MARKS = re.compile(b"|".join((ATTRIBUTE.encode(), b"Collective")))
"""One of these is in every graph in which something is exchanged."""


@dataclass(frozen=True)
class Reduction:
    """An operation by which the ranks combine or exchange tensors in a step.

    Numbers of bytes are ``None`` if the graph does not know them.
    """

    what: tuple[str, ...]
    """The variables whose gradients are reduced, or names of other tensors."""
    operation: str
    """Such as ``all_reduce``."""
    scheme: str
    reason: str
    bytes: int | None
    """Of the gradients."""
    sent: int | None
    """By each rank, at least: a tensor too small to be divided goes whole to each other rank."""
    start: float | None
    """How much of the longest chain of operations of the backward pass comes before, from 0 to 1.

    ``None`` if the graph has no backward pass.
    """
    within: str | None
    """``conditional`` or ``loop``, if it does not run once in each step."""


@dataclass(frozen=True)
class Reductions:
    """Those of a step, in the order in which the backward pass makes what they reduce."""

    ranks: int
    """For which ``sent`` is computed."""
    traced_by: int
    """The number of ranks for which the schemes were chosen."""
    operations: tuple[Reduction, ...]

    @property
    def bytes(self) -> int:
        """The known bytes of all operations."""
        return sum(each.bytes or 0 for each in self.operations)

    @property
    def sent(self) -> int:
        """The known bytes that a rank sends, if each operation runs once."""
        return sum(each.sent or 0 for each in self.operations)

    @property
    def unknown(self) -> int:
        """The number of operations that send bytes which only a step knows."""
        return sum(each.sent is None for each in self.operations)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, as in ``schema.json``."""
        return {
            "version": VERSION,
            "reductions": {
                "ranks": self.ranks,
                "traced_by": self.traced_by,
                "bytes": self.bytes,
                "sent": self.sent,
                "unknown": self.unknown,
                "operations": [_values(each) for each in self.operations],
            },
        }


def reductions(
    graph: Any, *, ranks: int | None = None, tags: Collection[str] | None = None
) -> Reductions:
    """Find what the ranks exchange in a data-parallel step.

    ``graph`` and ``tags`` are those of ``analyze()``. It must have been made by one of several
    ranks: alone, nothing is reduced. ``ranks`` is the number of ranks for which bytes are computed;
    ``None`` means those that made the graph. The schemes stay those that were chosen for these.

    Raises ``AnalysisError`` for invalid input, and if no operation exchanges anything.
    """
    return reductions_of(operations_in(graph, tags), ranks)


def reductions_of(found: Sequence[Found], ranks: int | None = None) -> Reductions:
    """Return what ``reductions()`` does, of the operations of a graph."""
    if ranks is not None and not 1 <= ranks <= MAX_TASKS:
        raise AnalysisError(f"ranks: {ranks} is not between 1 and {MAX_TASKS}")
    if not found:
        raise AnalysisError(f"a graph needs a cluster: add --cluster ps=1,worker=2; {_NONE}")
    traced_by = max(each.exchange.ranks for each in found)
    return Reductions(
        ranks or traced_by,
        traced_by,
        tuple(_reduction(each, _ranks(each, ranks, traced_by)) for each in found),
    )


def operations_in(graph: Any, tags: Collection[str] | None = None) -> list[Found]:
    """Return the operations of a graph that exchange something; raise ``AnalysisError``."""
    if is_model(graph):
        graph = training_step(graph, {})
    data = graph_def_bytes(graph, tags)
    if not _MARKS.search(data):
        return []
    # What a file has was traced elsewhere.
    protocol = "" if isinstance(graph, str | os.PathLike | bytes) else server_protocol()
    with quiet():
        from google.protobuf.message import DecodeError
        from tensorflow.core.framework import graph_pb2
    try:
        graph_def = graph_pb2.GraphDef.FromString(data)
        note_collectives(graph_def, protocol)
        return find(graph_def)
    except (DecodeError, CycleError, RecursionError, ValueError, TypeError) as error:
        raise AnalysisError(f"corrupt, or not a graph: {error}") from error


def _ranks(found: Found, ranks: int | None, traced_by: int) -> int:
    """Groups of some of the ranks keep their size."""
    own = found.exchange.ranks
    return ranks if ranks is not None and own == traced_by else own


def _reduction(found: Found, ranks: int) -> Reduction:
    exchange = found.exchange
    return Reduction(
        exchange.what,
        found.operation,
        exchange.scheme,
        exchange.why,
        exchange.size,
        _sent(found.operation, exchange.given, ranks),
        found.start,
        found.within,
    )


def _sent(operation: str, given: int | None, ranks: int) -> int | None:
    """Return what each rank sends on average, of what it gives, if nothing is sent twice."""
    if given is None:
        return None
    if operation == "all_gather":
        return given * (ranks - 1)
    # Each rank sends the others their parts; in an all-reduce, then also its part of the result.
    times = 2 if operation == "all_reduce" else 1
    return -(-times * given * (ranks - 1) // ranks)


def _values(one: Reduction) -> dict[str, Any]:
    found = {each.name: getattr(one, each.name) for each in fields(one)}
    return found | {"what": list(one.what)}
