"""What the interactive status shows: rows of peers and of edges, with their columns."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from rdma_transport.observe.samples import Sample, named
from rdma_transport.observe.table import EDGE_COLUMNS, PEER_COLUMNS, Columns, total_bytes
from rdma_transport.units import short

_Value = Callable[[dict[str, Any]], float]


@dataclass(frozen=True)
class Row:
    """One line: `key` identifies it in all samples; `cells` and `values` are by column."""

    key: str
    pid: int
    cells: tuple[str | Text, ...]
    values: tuple[float | str, ...]

    def matches(self, words: str) -> bool:
        """Whether each word is in one of the cells."""
        text = " ".join(str(cell) for cell in self.cells).lower()
        return all(word in text for word in words.lower().split())


@dataclass(frozen=True)
class View:
    """A kind of rows. A ">" before a column's name aligns it to the right."""

    name: str
    columns: tuple[str, ...]
    rows: Callable[[dict[str, Any], Sample], Iterable[Row]]


def _rate(way: str) -> _Value:
    return lambda peer: peer["rates"][f"{way}_bytes_per_second"] if peer["rates"] else -1


def _busy(peer: dict[str, Any]) -> float:
    return float(peer["slots"]["busy"])


_PEER_VALUES: dict[str, _Value] = {
    "link": lambda peer: peer["linked_at"] or 0,
    ">sends": _rate("sent"),
    ">receives": _rate("received"),
    ">sent": lambda peer: total_bytes(peer["sent"]),
    ">received": lambda peer: total_bytes(peer["received"]),
    ">outstanding": lambda peer: peer["outstanding_tensors"],
    ">slots": _busy,
    ">ring": lambda peer: peer["ring"]["used_bytes"] + peer["ring"]["waiting_bytes"],
}
# The most useful first: a narrow terminal shows the others when it is scrolled.
_PEER_ORDER = (
    "from", "peer", "transport", ">sends", ">receives", "link", "modes", ">outstanding", ">slots",
    ">ring", ">sent", ">received",
)  # fmt: skip
_EDGE_VALUES: dict[str, _Value] = {
    ">bytes": lambda edge: edge["bytes"],
    ">hits": lambda edge: edge["hits"],
    ">misses": lambda edge: edge["misses"],
    ">staged": lambda edge: edge["staged_bytes"],
    ">slots": lambda edge: edge["slots"],
}


def _peers(document: dict[str, Any], _: Sample) -> Iterable[Row]:
    columns = {name: PEER_COLUMNS[name] for name in _PEER_ORDER}
    for process in document["processes"]:
        for name, peer in named(process["peers"]):
            yield _row(f"{process['pid']} {name}", process["pid"], peer, columns, _PEER_VALUES)
        if not process["peers"]:
            yield _without_peers(process)


def _without_peers(process: dict[str, Any]) -> Row:
    tasks = ", ".join(map(short, process["tasks"])) or "no task"
    cells = (tasks, "no peers yet", *[""] * (len(_PEER_ORDER) - 2))
    values = (-1 if name in _PEER_VALUES else cells[i] for i, name in enumerate(_PEER_ORDER))
    return Row(str(process["pid"]), process["pid"], cells, tuple(values))


def _edges(_: dict[str, Any], sample: Sample) -> Iterable[Row]:
    for pid, stats in sorted(sample.answers.items()):
        seen: Counter[tuple[object, ...]] = Counter()
        for edge in stats["plan"]["edges"]:
            name = (edge["name"], edge["source"], edge["destination"], tuple(edge["shape"]))
            seen[name] += 1
            yield _row(f"{pid} {name} {seen[name]}", pid, edge, EDGE_COLUMNS, _EDGE_VALUES)


def _row(
    key: str, pid: int, one: dict[str, Any], columns: Columns, values: dict[str, _Value]
) -> Row:
    cells = {name: cell(one) for name, cell in columns.items()}
    return Row(
        key,
        pid,
        tuple(cells.values()),
        tuple(values[name](one) if name in values else str(cells[name]) for name in columns),
    )


PEERS = View("peers", _PEER_ORDER, _peers)
EDGES = View("edges", tuple(EDGE_COLUMNS), _edges)
