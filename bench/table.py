"""Results as tables in the style of perftest and the OSU micro-benchmarks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.table import Table

from .report import UNITS, Result, Row, Times
from .support.counters import MODES, Counts
from .support.machine import in_a_line
from .support.sizes import size_name

MAX_PAIRS = 4  # of tasks; the JSON has all
COLUMNS: tuple[tuple[str, Callable[[Row], str | None]], ...] = (
    ("#bytes", lambda row: str(row.bytes) if row.bytes or row.test == "barrier" else None),
    ("#iter", lambda row: str(row.iterations)),
    ("min", lambda row: _time(row, "min")),
    ("avg", lambda row: _time(row, "mean")),
    ("p50", lambda row: _median(row)),
    ("p99", lambda row: _time(row, "p99")),
    ("p99.9", lambda row: _time(row, "p999")),
    ("GB/s", lambda row: number(row.gbps)),
    ("busbw", lambda row: number(row.bus_gbps)),
    ("1/s", lambda row: number(row.per_second)),
    ("#wrong", lambda row: None if row.wrong is None else str(row.wrong)),
    ("ratio", lambda row: ratio_text(row)),
)


def ratio_text(row: Row) -> str | None:
    """Return "2.0x", or "> 2.0x" where noise hides more."""
    return None if row.ratio is None else "> " * row.at_least + f"{number(row.ratio)}x"


def number(value: float | None) -> str | None:
    """Format with at least three significant digits."""
    if value is None:
        return None
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4
    return f"{value:.{places}f}"


def _time(row: Row, name: str) -> str | None:
    return None if row.times is None else number(getattr(row.times, name))


def _median(row: Row) -> str | None:
    """Return the median, or an upper bound if it is below the noise."""
    times = row.times
    if times is not None and not times.resolved:
        return f"< {number(max(times.high or 0, 0))}"
    return _time(row, "p50")


def _scaled(row: Row, unit: float) -> Row:
    if row.times is None or unit == 1:
        return row
    figures = {name: us and us / unit for name, us in vars(row.times).items()}
    return replace(row, times=Times(**figures))


def _other(heading: str, row: Row) -> str | None:
    value = row.more.get(heading)
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return None if value is None else str(value)


def table(result: Result) -> Table:
    """Return the table, without columns that are empty or equal in all rows."""
    order = list(dict.fromkeys(row.test for row in result.rows))
    scaled = [_scaled(row, UNITS[result.unit]) for row in result.rows]
    rows = sorted(scaled, key=lambda row: order.index(row.test))  # a sweep of each test
    title = result.title + f"; times in {result.unit}" * any(row.times is not None for row in rows)
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    tests = len({row.test for row in rows}) > 1
    names = any(row.name != size_name(row.bytes) for row in rows)
    shown = [(name, cell) for name, cell in COLUMNS if any(cell(row) for row in rows)]
    for name in ("test",) * tests + ("name",) * names + ("over",):
        made.add_column(name, no_wrap=True)
    more = dict.fromkeys(heading for row in rows for heading in row.more)
    shown += [(heading, partial(_other, heading)) for heading in more]
    for name, _ in shown:
        name = f"vs {result.against}" if name == "ratio" else name
        made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        words = (row.test,) * tests + (row.name,) * names + (row.protocol,)
        made.add_row(*words, *(cell(row) or "-" for _, cell in shown))
    return made


def header(machines: Sequence[dict[str, Any]], command: str) -> list[str]:
    """Return lines with the command and the machines."""
    return [f"# {command}", *(f"# {each['host']}: {in_a_line(each)}" for each in machines)]


def details(result: Result) -> list[str]:
    """Return the lines below the table."""
    modes = sent(result.rows)
    lines = [f"fabric of {end}: {text}" for end, text in zip(ENDS, result.devices, strict=False)]
    lines += ways(result.routes)
    lines += [f"rdma sent: {modes}"] if modes else []
    lines += [f"gRPC fallback: {why}: {count}" for why, count in result.reasons.items()]
    return [f"# {line}" for line in (*lines, *result.notes)]


def ways(routes: Sequence[Counts]) -> list[str]:
    """Return the transports that were used, each with its pairs of tasks."""
    taken: dict[str, list[str]] = {}
    for route in routes:
        way = route["transport"] + (f" ({route['reason']})" if route["reason"] else "")
        taken.setdefault(way, []).append(f"{route['from']} -> {route['to']}")
    return [f"transport {way}: {_some(pairs)}" for way, pairs in taken.items()]


def _some(names: Sequence[str]) -> str:
    more = len(names) - MAX_PAIRS
    return ", ".join(names[:MAX_PAIRS]) + (f", and {more} more" if more > 0 else "")


ENDS = ("this host", "the peer")


def sent(rows: Sequence[Row]) -> str:
    """Return the share of each mode in rdma's bytes; empty if they were not counted."""
    counts = [row.sent for row in rows if row.sent and row.protocol == "rdma"]
    sums = {mode: sum(count[mode]["bytes"] for count in counts) for mode in MODES}
    total = sum(sums.values())
    if not total:
        return ""
    tensors = sum(count[mode]["tensors"] for count in counts for mode in MODES)
    shares = [f"{mode} {percent(part / total)}" for mode, part in sums.items() if part]
    return f"{', '.join(shares)} of {size_name(total)} in {tensors} tensors"


def percent(share: float) -> str:
    """Round down, so that 100 % means all and 0 % means none."""
    rounded = math.floor(1e4 * share) / 100
    return f"{rounded:g} %" if rounded or not share else "< 0.01 %"
