"""Results as tables in the manner of perftest and OSU, for people."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.report import Result, Row
from bench.support.counters import PATHS, Counts
from bench.support.machine import in_a_line
from bench.support.sizes import size_name

LEAST_COLUMNS = 100  # a narrower terminal wraps, which loses nothing
MOST_PAIRS = 4  # of tasks; the JSON has all
PIPE_COLUMNS = 200  # without a terminal there is no width to fit into
COLUMNS: tuple[tuple[str, Callable[[Row], str | None]], ...] = (
    ("#bytes", lambda row: str(row.bytes)),
    ("#iter", lambda row: str(row.iterations)),
    ("min", lambda row: _time(row, "min")),
    ("avg", lambda row: _time(row, "mean")),
    ("p50", lambda row: _median(row)),
    ("p99", lambda row: _time(row, "p99")),
    ("p99.9", lambda row: _time(row, "p999")),
    ("GB/s", lambda row: number(row.gbps)),
    ("1/s", lambda row: number(row.per_second)),
    ("#wrong", lambda row: None if row.wrong is None else str(row.wrong)),
    ("vs gRPC", lambda row: None if row.ratio is None else f"{number(row.ratio)}x"),
)


def number(value: float | None) -> str | None:
    """Three significant digits or more."""
    if value is None:
        return None
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4
    return f"{value:.{places}f}"


def _time(row: Row, name: str) -> str | None:
    return None if row.times is None else number(getattr(row.times, name))


def _median(row: Row) -> str | None:
    """Only a bound where noise hides it."""
    times = row.times
    if times is not None and times.low is not None and times.low <= 0:
        return f"< {number(max(times.high or 0, 0))}"
    return _time(row, "p50")


def table(result: Result) -> Table:
    """Columns that say nothing are left out: where no row has a figure, or all tests are one."""
    rows = result.rows
    title = f"{result.title}; times in us"
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    tests = len({row.test for row in rows}) > 1
    names = any(row.name != size_name(row.bytes) for row in rows)
    shown = [(name, cell) for name, cell in COLUMNS if any(cell(row) for row in rows)]
    for name in ("test",) * tests + ("name",) * names + ("over",):
        made.add_column(name, no_wrap=True)
    for name, _ in shown:
        made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        words = (row.test,) * tests + (row.name,) * names + (row.protocol,)
        made.add_row(*words, *(cell(row) or "-" for _, cell in shown))
    return made


def header(machines: Sequence[dict[str, Any]], command: str) -> list[str]:
    """Where it is measured, and how."""
    return [f"# {command}", *(f"# {each['host']}: {in_a_line(each)}" for each in machines)]


def details(result: Result) -> list[str]:
    """What the table has no column for."""
    paths = sent(result.rows)
    lines = [f"fabric of {end}: {text}" for end, text in zip(ENDS, result.devices, strict=False)]
    lines += ways(result.routes)
    lines += [f"rdma sent: {paths}"] if paths else []
    lines += [f"by gRPC, because {why}: {count}" for why, count in result.reasons.items()]
    return [f"# {line}" for line in (*lines, *result.notes)]


def ways(routes: Sequence[Counts]) -> list[str]:
    """The paths that were taken, and who took each."""
    taken: dict[str, list[str]] = {}
    for route in routes:
        way = route["path"] + (f" ({route['reason']})" if route["reason"] else "")
        taken.setdefault(way, []).append(f"{route['from']} -> {route['to']}")
    return [f"path {way}: {_some(pairs)}" for way, pairs in taken.items()]


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_PAIRS
    return ", ".join(names[:MOST_PAIRS]) + (f", and {more} more" if more > 0 else "")


ENDS = ("this host", "the peer")


def sent(rows: Sequence[Row]) -> str:
    """How rdma's tensors went, by bytes; empty if nobody counted."""
    counts = [row.sent for row in rows if row.sent and row.protocol == "rdma"]
    sums = {path: sum(count[path]["bytes"] for count in counts) for path in PATHS}
    total = sum(sums.values())
    if not total:
        return ""
    tensors = sum(count[path]["tensors"] for count in counts for path in PATHS)
    shares = [f"{path} {percent(part / total)}" for path, part in sums.items() if part]
    return f"{', '.join(shares)} of {size_name(total)} in {tensors} tensors"


def percent(share: float) -> str:
    """Rounded down, so that 100 % is all of it and 0 % none."""
    rounded = math.floor(1e4 * share) / 100
    return f"{rounded:g} %" if rounded or not share else "< 0.01 %"


def console() -> Console:
    """Of standard output; plain lines as wide as they are where it is no terminal."""
    made = Console(highlight=False, markup=False, soft_wrap=True)
    made.width = max(made.width, LEAST_COLUMNS) if made.is_terminal else PIPE_COLUMNS
    return made
