"""The results of all benchmarks in one form, for tables and JSON.

None means not measured, or too few samples.
"""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rdma_transport.command_line import json_text

from .support.counters import MODES, Counts

VERSION = 1
GB = 1e9


@dataclass(frozen=True)
class Times:
    """Microseconds of one operation; `low` to `high` is a 95 % interval of the median."""

    p50: float
    min: float | None = None
    mean: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """Return the times for JSON."""
        named = {name: value for name, value in vars(self).items() if name != "p999"}
        return named | {"p99.9": self.p999}


def times_of(samples: Sequence[float]) -> Times:
    """Return the statistics of operations that were timed separately, in microseconds."""
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
    """Return the percentile by nearest rank; None if there are too few samples."""
    if len(ordered) * (1 - part) < 1 - 1e-9:
        return None
    return ordered[math.ceil(part * len(ordered)) - 1]


@dataclass(frozen=True)
class Row:
    """One row: `iterations` of `test`, each with `bytes`, over `protocol`."""

    test: str
    name: str
    bytes: int
    protocol: str
    iterations: int
    times: Times | None = None
    gbps: float | None = None  # GB/s, of 10^9 bytes
    bus_gbps: float | None = None  # of a collective, as nccl-tests define it
    per_second: float | None = None
    wrong: int | None = None  # values that were not what was sent
    sent: Counts | None = None  # by mode; tensors and bytes, of all tasks, while this was measured
    ratio: float | None = None  # how many times as fast as gRPC in the same run
    overlap: float | None = None  # percentage of a non-blocking call hidden behind a computation
    unhidden_us: float | None = None  # of a step's communication, beyond the computation
    sent_bytes: int | None = None  # by a rank in a step

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        row = vars(self) | {"us": self.times.as_dict() if self.times else None}
        del row["times"]
        return row


# The bytes that a rank at least sends or receives, in sizes of the row.
BUS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: ranks - 1,
    "all_gather": lambda ranks: ranks - 1,
    "all_to_all": lambda ranks: ranks - 1,
    "broadcast": lambda ranks: 1,
}


def bus_gbps(op: str, gbps: float | None, ranks: int) -> float | None:
    """Return what nccl-tests call the bus bandwidth of a collective, if it has one."""
    return gbps * BUS[op](ranks) if gbps and op in BUS else None


@dataclass
class Result:
    """One benchmark. `headline` names the main figure of a row: p50, gbps or per_second."""

    benchmark: str
    title: str
    options: dict[str, Any]
    headline: str
    rows: list[Row] = field(default_factory=list)
    routes: list[Counts] = field(default_factory=list)  # how tasks really reached each other
    reasons: Counts = field(default_factory=dict)  # why rdma tensors fell back to gRPC
    devices: list[str] = field(default_factory=list)  # this host's and the peer's, of the fabric
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # why this is no good measurement
    fallback: bool = False  # gRPC took what was asked as rdma

    @property
    def by_grpc(self) -> tuple[int, int]:
        """The bytes that fell back from rdma to gRPC, and all bytes requested as rdma."""
        sent = [row.sent for row in self.rows if row.sent and row.protocol == "rdma"]
        return (
            sum(counts["grpc"]["bytes"] for counts in sent),
            sum(counts[mode]["bytes"] for counts in sent for mode in MODES),
        )

    @property
    def wrong(self) -> int:
        """How many results of all rows were wrong."""
        return sum(row.wrong or 0 for row in self.rows)

    def compare(self) -> None:
        """Set the ratios of rows for which gRPC was measured in the same run."""
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
        """Return the result for JSON."""
        return vars(self) | {"rows": [row.as_dict() for row in self.rows]}


def figure(row: Row, headline: str) -> float | None:
    """Return the main figure of a row; None if it is not measured or below the noise."""
    if headline == "p50":
        known = row.times is not None and (row.times.low is None or row.times.low > 0)
        return row.times.p50 if row.times and known else None
    value: float | None = getattr(row, headline)
    return value


def schema() -> dict[str, Any]:
    """Return the JSON schema of the output of `--json`."""
    text = Path(__file__).with_name("schema.json").read_text()
    read: dict[str, Any] = json.loads(text)
    return read


def as_json(machines: list[dict[str, Any]], command: str, results: list[Result]) -> str:
    """Return the JSON document; `machines` are `bench.support.machine.facts()`, by role."""
    document = {
        "version": VERSION,
        "command": command,
        "machines": machines,
        "results": [result.as_dict() for result in results],
    }
    return json_text(document)
