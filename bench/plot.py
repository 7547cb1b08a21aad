"""Plots of results: time, bandwidth or rate by bytes, with a line for each protocol."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .report import Result, Row, figure

FIGURES: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
    ("p50, us", lambda row: figure(row, "p50")),
    ("GB/s", lambda row: row.gbps),
    ("per second", lambda row: row.per_second),
)
COLORS = {"grpc": "C0", "rdma": "C1", "local": "C2"}
WIDTH, HEIGHT = 5.0, 3.6  # inches, of one pair of axes
PAPER = 150  # dots per inch


def draw(results: Sequence[Result], path: Path) -> None:
    """Write a .png or .svg with a row of log-log plots for each result."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    wanted = [
        [(label, read) for label, read in FIGURES if any(map(read, result.rows))]
        for result in results
    ]
    columns = max(len(figures) for figures in wanted)
    size = (WIDTH * columns, HEIGHT * len(results))
    picture, grid = pyplot.subplots(len(results), columns, figsize=size, squeeze=False)
    for result, figures, axes in zip(results, wanted, grid, strict=True):
        for each, (label, read) in zip(axes, figures, strict=False):
            _lines(each, result, label, read)
        for empty in axes[len(figures) :]:
            empty.set_axis_off()
    picture.tight_layout()
    picture.savefig(path, dpi=PAPER)
    pyplot.close(picture)


def _lines(axes: Any, result: Result, label: str, read: Callable[[Row], float | None]) -> None:
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in result.rows:
        value = read(row)
        if value is not None and value > 0:
            points.setdefault((row.test, row.protocol), []).append((row.bytes, value))
    several = len({test for test, _ in points}) > 1
    for (test, protocol), found in points.items():
        name = f"{test}, {protocol}" if several else protocol
        color = None if several else COLORS.get(protocol)
        line = zip(*sorted(found), strict=True)
        axes.plot(*line, marker="o", markersize=4, label=name, color=color)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes")
    axes.set_ylabel(label)
    axes.set_title(result.benchmark)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
