"""Results as a picture: bytes against time, bandwidth or rate, a line for each protocol."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.report import Result, Row

FIGURES: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
    ("p50, us", lambda row: None if row.times is None else row.times.p50),
    ("GB/s", lambda row: row.gbps),
    ("a second", lambda row: row.per_second),
)
WIDTH, HEIGHT = 5.0, 3.6  # inches, of one pair of axes
PAPER = 150  # dots per inch


def draw(results: Sequence[Result], path: Path) -> None:
    """Write a .png or .svg with a row of axes for each result, logarithmic on both."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    wanted = [
        [(label, figure) for label, figure in FIGURES if any(map(figure, result.rows))]
        for result in results
    ]
    columns = max(len(figures) for figures in wanted)
    size = (WIDTH * columns, HEIGHT * len(results))
    picture, grid = pyplot.subplots(len(results), columns, figsize=size, squeeze=False)
    for result, figures, axes in zip(results, wanted, grid, strict=True):
        for each, (label, figure) in zip(axes, figures, strict=False):
            _lines(each, result, label, figure)
        for empty in axes[len(figures) :]:
            empty.set_axis_off()
    picture.tight_layout()
    picture.savefig(path, dpi=PAPER)
    pyplot.close(picture)


def _lines(axes: Any, result: Result, label: str, figure: Callable[[Row], float | None]) -> None:
    points: dict[str, list[tuple[int, float]]] = {}
    several = len({row.test for row in result.rows}) > 1
    for row in result.rows:
        value = figure(row)
        if value is not None and value > 0:
            line = f"{row.test}, {row.protocol}" if several else row.protocol
            points.setdefault(line, []).append((row.bytes, value))
    for line, found in points.items():
        axes.plot(*zip(*sorted(found), strict=True), marker="o", markersize=4, label=line)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes")
    axes.set_ylabel(label)
    axes.set_title(result.benchmark)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
