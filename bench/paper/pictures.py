"""Plots of what was measured, as SVG files."""

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..plot import by_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = list[dict[str, Any]]
NAMES = {
    "grpc": "gRPC",
    "rdma": "rdma",
    "copying": "rdma, zero copy off",
    "dynamic": "rdma, static placement off",
    "local": "one process",
    "floor": "floor of a whole hop",
}
# The colors of Okabe and Ito, which color-blind people can distinguish.
COLORS = {
    "grpc": "#d55e00",
    "rdma": "#0072b2",
    "copying": "#e69f00",
    "dynamic": "#56b4e9",
    "local": "#000000",
    "floor": "#999999",
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
    sizes = [row["bytes"] for row in rows]
    for way in (name for name in NAMES if name in rows[0]):
        axes.plot(
            sizes,
            [row[way]["median"] if row[way]["resolved"] else np.nan for row in rows],
            label=NAMES[way],
            color=COLORS[way],
            marker="o",
        )
    axes.set(yscale="log", ylabel="us per edge")
    by_bytes(axes, sizes, most=10)


def models(axes: "Axes", rows: Rows) -> None:
    """Plot the ms per step of each model."""
    _bars(axes, rows, [row["model"] for row in rows])
    axes.set(ylabel="ms per step")


def scaling(axes: "Axes", rows: Rows) -> None:
    """Plot the ms per step by model and number of workers."""
    _bars(axes, rows, [f"{row['model']}\n{row['workers']} workers" for row in rows])
    axes.set(ylabel="ms per step")


def _bars(axes: "Axes", rows: Rows, names: list[str]) -> None:
    places = np.arange(len(rows))
    for side, protocol in ((-0.2, "grpc"), (0.2, "rdma")):
        times = [row["ms"][protocol]["median"] for row in rows]
        bars = axes.bar(places + side, times, 0.38, label=NAMES[protocol], color=COLORS[protocol])
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks(places, names, fontsize=8)


def convergence(axes: "Axes", rows: Rows) -> None:
    """Plot the smoothed loss by the seconds of training."""
    for row in rows:
        times = list(accumulate(row["seconds"]))[SMOOTHED - 1 :]
        losses = np.convolve(row["losses"], np.ones(SMOOTHED) / SMOOTHED, "valid")
        protocol = row["protocol"]
        axes.plot(times, losses, label=NAMES[protocol], color=COLORS[protocol])
    axes.set(yscale="log", xlabel="seconds of training", ylabel=f"loss, mean of {SMOOTHED} steps")


DRAWN: dict[str, Callable[["Axes", Rows], None]] = {
    "message_sizes": message_sizes,
    "verbs_message_sizes": message_sizes,
    "soft_roce_message_sizes": message_sizes,
    "passed_references": message_sizes,
    "models": models,
    "scaling": scaling,
    "convergence": convergence,
}
