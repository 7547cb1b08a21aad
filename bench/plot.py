"""Plots of results: time, bandwidth or rate by bytes, with a line for each protocol.

Colors tell protocols apart, markers and dashes tell tests apart. The colors are those of Okabe and
Ito, which color-blind people can distinguish.
"""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .report import Result, Row, figure
from .support.sizes import size_name

FIGURES: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
    ("p50, us", lambda row: figure(row, "p50")),
    ("GB/s", lambda row: row.gbps),
    ("per second", lambda row: row.per_second),
)
ORANGE, BLUE, GREEN, PINK = "#d55e00", "#0072b2", "#009e73", "#cc79a7"
SKY, YELLOW, GRAY, BLACK = "#56b4e9", "#e69f00", "#999999", "#000000"
COLORS = {
    "grpc": ORANGE,
    "rdma": BLUE,
    "registered": SKY,
    "mpi": GREEN,
    "ucx": PINK,
    "local": BLACK,
    "cpu": GRAY,
    "floor": GRAY,
}
OF_A_FABRIC = BLUE  # whatever its name is
STYLES = ("o-", "s--", "^:", "D-.", "v-", "P--", "X:")  # of tests
WIDTH, HEIGHT = 5.0, 3.6  # inches, of one pair of axes
MOST_SIZES = 6  # at an axis
PAPER = 150  # dots per inch
CAPTION_INCHES = 0.25  # of a line
CAPTION_COLUMNS = 16  # characters per inch of its width


def draw(results: Sequence[Result], path: Path, caption: Sequence[str] = ()) -> bool:
    """Write a .png or .svg of picture_of(); return False if no result has figures by size."""
    from matplotlib import pyplot

    results = [each for each in results if _figures(each)]
    if not results:
        return False
    picture = picture_of(results, caption)
    picture.savefig(path, dpi=PAPER)
    pyplot.close(picture)
    return True


def _figures(result: Result) -> list[tuple[str, Callable[[Row], float | None]]]:
    """What can be drawn of a result: figures of rows that have a size."""
    rows = [row for row in result.rows if row.bytes]
    return [(label, read) for label, read in FIGURES if any(map(read, rows))]


def picture_of(results: Sequence[Result], caption: Sequence[str]) -> Any:
    """Return a row of log-log plots for each result, with the caption below: pyplot's figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    wanted = [_figures(result) for result in results]
    columns = max(len(figures) for figures in wanted)
    width = int(WIDTH * columns * CAPTION_COLUMNS)
    lines = [part for line in caption for part in textwrap.wrap(line, width)]
    below = CAPTION_INCHES * len(lines)
    size = (WIDTH * columns, HEIGHT * len(results) + below)
    picture, grid = pyplot.subplots(len(results), columns, figsize=size, squeeze=False)
    for result, figures, axes in zip(results, wanted, grid, strict=True):
        for each, (label, read) in zip(axes, figures, strict=False):
            _lines(each, result, label, read)
        for empty in axes[len(figures) :]:
            empty.set_axis_off()
    picture.text(0.01, 0.01, "\n".join(lines), fontsize="x-small", family="monospace")
    picture.tight_layout(rect=(0, below / size[1], 1, 1))
    return picture


def _lines(axes: Any, result: Result, label: str, read: Callable[[Row], float | None]) -> None:
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in result.rows:
        value = read(row)
        if row.bytes and value is not None and value > 0:
            points.setdefault((row.test, row.protocol), []).append((row.bytes, value))
    tests = list(dict.fromkeys(test for test, _ in points))
    for (test, protocol), found in points.items():
        name = f"{test}, {protocol}" if len(tests) > 1 else protocol
        style = STYLES[tests.index(test) % len(STYLES)]
        color = COLORS.get(protocol, OF_A_FABRIC)
        axes.plot(*zip(*sorted(found), strict=True), style, markersize=4, label=name, color=color)
    axes.set_yscale("log")
    by_bytes(axes, [row.bytes for row in result.rows if row.bytes])
    axes.set_ylabel(label)
    axes.set_title(result.benchmark)
    axes.grid(alpha=0.3)
    # Below, where there is no data.
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)


def by_bytes(axes: Any, sizes: Sequence[int], most: int = MOST_SIZES) -> None:
    """Let a logarithmic x-axis name sizes as tables do: 64 B, 4 KiB."""
    from matplotlib.ticker import NullLocator

    measured = sorted(set(sizes))
    shown = measured[:: -(-len(measured) // most)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [size_name(size) for size in shown], fontsize="small")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("size of the tensor")
