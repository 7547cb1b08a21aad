"""Plots of what was measured, as SVG files."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..plot import BLACK, BLUE, GRAY, ORANGE, SKY, YELLOW, by_bytes
from ..report import Row, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Row]
NAMES = {
    "grpc": "gRPC",
    "rdma": "rdma",
    "copying": "rdma, zero copy off",
    "dynamic": "rdma, static placement off",
    "local": "one process",
    "floor": "floor of a whole hop",
}
COLORS = {
    "grpc": ORANGE,
    "rdma": BLUE,
    "copying": YELLOW,
    "dynamic": SKY,
    "local": BLACK,
    "floor": GRAY,
}
SMOOTHED = 10  # losses in a mean


def draw(name: str, rows: Rows, path: Path) -> None:
    """Draw the experiment `name` into the file `path`."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # The same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e3e7ec")
        axes.set_axisbelow(True)
        DRAWN[name](axes, rows)
        # Above the axes, where there is no data.
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def message_sizes(axes: "Axes", rows: Rows) -> None:
    """Plot the us per edge by the bytes of the tensor."""
    sizes = sorted({row.bytes for row in rows})
    for way in NAMES:
        of_way = [row for row in rows if row.protocol == way and not row.test.startswith("step")]
        if of_way:
            times = [figure(row, "p50") or np.nan for row in of_way]
            axes.plot(sizes, times, label=NAMES[way], color=COLORS[way], marker="o")
    axes.set(yscale="log", ylabel="us per edge")
    by_bytes(axes, sizes, most=10)


def models(axes: "Axes", rows: Rows) -> None:
    """Plot the ms per step of each model."""
    _bars(axes, rows, lambda row: row.name)


def scaling(axes: "Axes", rows: Rows) -> None:
    """Plot the ms per step by model and number of workers."""
    _bars(axes, rows, lambda row: f"{row.name}\n{row.test} workers")


def _bars(axes: "Axes", rows: Rows, name: Callable[[Row], str]) -> None:
    for side, protocol in ((-0.2, "grpc"), (0.2, "rdma")):
        of_it = [row for row in rows if row.protocol == protocol]
        places = np.arange(len(of_it))
        times = [row.times.p50 / 1e3 for row in of_it if row.times]
        bars = axes.bar(places + side, times, 0.38, label=NAMES[protocol], color=COLORS[protocol])
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks(places, [name(row) for row in of_it], fontsize=8)
    axes.set(ylabel="ms per step")


def convergence(axes: "Axes", rows: Rows) -> None:
    """Plot the smoothed loss by the seconds of training."""
    for row in rows:
        times = list(accumulate(row.series["seconds"]))[SMOOTHED - 1 :]
        losses = np.convolve(row.series["losses"], np.ones(SMOOTHED) / SMOOTHED, "valid")
        axes.plot(times, losses, label=NAMES[row.protocol], color=COLORS[row.protocol])
    axes.set(yscale="log", xlabel="seconds of training", ylabel=f"loss, mean of {SMOOTHED} steps")


DRAWN: dict[str, Callable[["Axes", Rows], None]] = {
    "message_sizes": message_sizes,
    "soft_roce_message_sizes": message_sizes,
    "models": models,
    "scaling": scaling,
    "convergence": convergence,
}
