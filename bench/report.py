"""What every measurement of the command line gives: rows of one form, as a table and as JSON.

None is what was not measured, or what too few samples cannot tell.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.support.counters import PATHS, Counts
from graph_analyzer.cli import json_text

VERSION = 1
GB = 1e9


@dataclass(frozen=True)
class Times:
    """Microseconds of single operations; `low` to `high` holds the median with about 95 %."""

    min: float
    p50: float
    mean: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        named = {name: value for name, value in vars(self).items() if name != "p999"}
        return named | {"p99.9": self.p999}


def times_of(samples: Sequence[float]) -> Times:
    """Of single operations, each timed by itself; in microseconds."""
    ordered = sorted(samples)
    return Times(
        min=ordered[0],
        p50=statistics.median(ordered),
        mean=statistics.fmean(ordered),
        p99=percentile(ordered, 0.99),
        p999=percentile(ordered, 0.999),
        max=ordered[-1],
    )


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """By nearest rank; None unless there are enough samples for one beyond it."""
    if len(ordered) * (1 - part) < 1 - 1e-9:
        return None
    return ordered[math.ceil(part * len(ordered)) - 1]


@dataclass(frozen=True)
class Row:
    """One line: so many `iterations` of `test`, each of `bytes`, over `protocol`."""

    test: str
    name: str
    bytes: int
    protocol: str
    iterations: int
    times: Times | None = None
    gbps: float | None = None  # GB/s, of 10^9 bytes
    per_second: float | None = None
    wrong: int | None = None  # values that were not what was sent
    sent: Counts | None = None  # by path; tensors and bytes, of all tasks, while this was measured
    ratio: float | None = None  # how many times as fast as gRPC in the same run

    def as_dict(self) -> dict[str, Any]:
        row = vars(self) | {"us": self.times.as_dict() if self.times else None}
        del row["times"]
        return row


@dataclass
class Result:
    """One benchmark. `headline` names the figure of a row that counts: p50, gbps or per_second."""

    benchmark: str
    title: str
    options: dict[str, Any]
    headline: str
    rows: list[Row] = field(default_factory=list)
    routes: list[Counts] = field(default_factory=list)  # how tasks really reached each other
    reasons: Counts = field(default_factory=dict)  # why what was asked as rdma went by gRPC
    devices: list[str] = field(default_factory=list)  # this host's and the peer's, of the fabric
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # why this is no good measurement
    fallback: bool = False  # gRPC took what was asked as rdma

    @property
    def by_grpc(self) -> tuple[int, int]:
        """Bytes that went by gRPC though rdma was asked for, and all bytes asked as rdma."""
        sent = [row.sent for row in self.rows if row.sent and row.protocol == "rdma"]
        return (
            sum(counts["grpc"]["bytes"] for counts in sent),
            sum(counts[path]["bytes"] for counts in sent for path in PATHS),
        )

    @property
    def wrong(self) -> int:
        return sum(row.wrong or 0 for row in self.rows)

    def compare(self) -> None:
        """Fill in the ratios, where gRPC was measured in the same run."""
        grpc = {(row.test, row.name): row for row in self.rows if row.protocol == "grpc"}
        self.rows = [
            replace(row, ratio=self._ratio(grpc[row.test, row.name], row))
            if row.protocol == "rdma" and (row.test, row.name) in grpc
            else row
            for row in self.rows
        ]

    def _ratio(self, slow: Row, fast: Row) -> float | None:
        before, after = figure(slow, self.headline), figure(fast, self.headline)
        if before is None or after is None:
            return None
        if self.headline == "p50":
            before, after = after, before
        return after / before if before > 0 else None

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"rows": [row.as_dict() for row in self.rows]}


def figure(row: Row, headline: str) -> float | None:
    """What counts of a row; None also where noise hides it."""
    if headline == "p50":
        known = row.times is not None and (row.times.low is None or row.times.low > 0)
        return row.times.p50 if row.times and known else None
    value: float | None = getattr(row, headline)
    return value


def schema() -> dict[str, Any]:
    """The JSON schema of what `--json` prints."""
    text = Path(__file__).with_name("schema.json").read_text()
    read: dict[str, Any] = json.loads(text)
    return read


def as_json(machines: list[dict[str, Any]], command: str, results: list[Result]) -> str:
    """The whole answer; `machines` are `bench.support.machine.facts()`, this host first."""
    document = {
        "version": VERSION,
        "command": command,
        "machines": machines,
        "results": [result.as_dict() for result in results],
    }
    return json_text(document)
