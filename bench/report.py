"""The results of all benchmarks in one form.

A benchmark is a function that takes a `bench.where.Where` and returns a `Result`: rows, each of a
test, a name (a size, a model, an event) and a protocol, with its times, rates and what else was
counted. It prints nothing. `bench.runner` runs it, `bench.table` and `bench.plot` show what it
returns, as_json() writes it, and `bench.paper` makes a page of it. None means not measured, or too
few samples.
"""

import json
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rdma_transport.command_line import json_text

from .support.counters import MODES, Counts, above_zero

VERSION = 1
GB = 1e9
UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}  # in us
MIN_SAMPLES = 6  # with fewer, no order statistics hold the median in 95 %
MAX_SPREAD = 1.5  # of a median's 95 % interval, high to low, that permits a ratio


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

    @property
    def resolved(self) -> bool:
        """Whether the noise leaves room for saying that this is more than nothing."""
        return self.low is None or self.low > 0

    @property
    def steady(self) -> bool:
        """Whether the median is known well enough for a ratio."""
        if self.low is None or self.high is None:
            return self.p50 > 0
        return self.low > 0 and self.high <= MAX_SPREAD * self.low

    def as_dict(self) -> dict[str, float | None]:
        """Return the times for JSON."""
        named = {name: value for name, value in vars(self).items() if name != "p999"}
        return named | {"p99.9": self.p999}


def times_of(samples: Sequence[float]) -> Times:
    """Return the statistics of operations that were timed separately, in microseconds."""
    ordered = sorted(samples)
    n = len(ordered)
    away = math.floor(n / 2 - 0.98 * math.sqrt(n))
    known = n >= MIN_SAMPLES
    return Times(
        low=ordered[max(away - 1, 0)] if known else None,
        high=ordered[min(n - away, n - 1)] if known else None,
        min=ordered[0],
        p50=statistics.median(ordered),
        mean=statistics.fmean(ordered),
        p99=percentile(ordered, 0.99),
        p999=percentile(ordered, 0.999),
        max=ordered[-1],
    )


def ratio_of(slow: Times, fast: Times) -> tuple[float, bool] | None:
    """Return how many times as fast the second one is, and whether that is only a lower bound.

    None: the noise does not let see it.
    """
    if slow.steady and fast.steady:
        return slow.p50 / fast.p50, False
    if fast.high is not None and slow.low is not None and 0 < fast.high < slow.low:
        return slow.low / fast.high, True
    return None


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
    at_least: bool = False  # the ratio is a lower bound
    more: dict[str, float | str] = field(default_factory=dict)  # by the heading of a column
    series: dict[str, list[Any]] = field(default_factory=dict)  # values per step, for JSON

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> "Row":
        """Return the row that `as_dict()` returned."""
        given = dict(known)
        times = given.pop("us")
        if times is not None:
            times = dict(times)
            times["p999"] = times.pop("p99.9")
        return cls(**given, times=times and Times(**times))

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
    against: str = "gRPC"  # what ratios compare with
    unit: str = "us"  # of times in the table; in JSON they are in us

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

    def compare(self, ours: Collection[str] = ("rdma",)) -> None:
        """Set the ratios of rows over `ours` for which gRPC was measured in the same run."""
        grpc = {(row.test, row.name): row for row in self.rows if row.protocol == "grpc"}
        self.rows = [
            self._compared(grpc[row.test, row.name], row)
            if row.protocol in ours and row.protocol != "grpc" and (row.test, row.name) in grpc
            else row
            for row in self.rows
        ]

    def _compared(self, slow: Row, fast: Row) -> Row:
        if self.headline == "p50":
            found = ratio_of(slow.times, fast.times) if slow.times and fast.times else None
            return replace(fast, ratio=found[0], at_least=found[1]) if found else fast
        before, after = getattr(slow, self.headline), getattr(fast, self.headline)
        return replace(fast, ratio=after / before if before and after is not None else None)

    def add_traffic(self, clusters: Mapping[str, Any]) -> None:
        """Record the transports of rdma's peers, and why tensors fell back to gRPC."""
        if "rdma" in clusters:
            counted = clusters["rdma"].counted()
            self.routes = clusters["rdma"].routes()
            self.reasons = above_zero(counted["fallback_reasons"]) if counted else {}

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> "Result":
        """Return the result that `as_dict()` returned."""
        rows = [Row.from_dict(row) for row in known["rows"]]
        return cls(**{**known, "rows": rows})

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return vars(self) | {"rows": [row.as_dict() for row in self.rows]}


def figure(row: Row, headline: str) -> float | None:
    """Return the main figure of a row; None if it is not measured or below the noise."""
    if headline == "p50":
        return row.times.p50 if row.times and row.times.resolved else None
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
