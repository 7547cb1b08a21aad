"""Draws the tasks and the links between them; the width of a link shows its bytes."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graph_analyzer.errors import AnalysisError
from graph_analyzer.layout import BOX_WIDTH, LEGEND, MARGIN, Box, Layout, Link, Points, lay_out
from graph_analyzer.plan import Plan, Traffic
from graph_analyzer.records import MODES
from rdma_transport.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
COLORS = {
    "static": "#2f8f6f",
    "dynamic": "#e3a02f",
    "inline": "#5b8fd0",
    "grpc": "#c94f45",
}
_INK, _QUIET, _PAPER, _BOX, _FRAME = "#1d2530", "#66717f", "#ffffff", "#eef2f7", "#9aa7b8"
_DOTS_PER_INCH = 150


def check_suffix(path: str | os.PathLike[str]) -> Path:
    """Return the path if its suffix is supported; else raise ``AnalysisError``."""
    result = Path(path)
    if result.suffix.lower() not in SUFFIXES:
        raise AnalysisError(
            f"{result}: cannot draw this format; give a file name that ends in "
            f"{' or '.join(SUFFIXES)}"
        )
    return result


def draw(plan: Plan, path: str | os.PathLike[str]) -> Path:
    """Draw the plan to a ``.png`` or ``.svg`` file and return its path.

    Jobs are columns. Tasks are boxes with the memory that they register. The width of a link shows
    its bytes per step, colored by mode. Raises ``AnalysisError`` for another suffix, a path that
    cannot be written, or if matplotlib is missing.
    """
    target = check_suffix(path)
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        message = f"a picture needs matplotlib ({error}). Install it: pip install matplotlib"
        raise AnalysisError(message) from error
    layout = lay_out(plan)
    figure = Figure(figsize=(layout.width / 72, layout.height / 72), facecolor=_PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, layout.width)
    axes.set_ylim(0, layout.height)
    axes.axis("off")
    _draw_title(axes, plan, layout)
    for link in layout.links:
        _draw_link(axes, link)
    for box in layout.boxes:
        _draw_box(axes, box)
    for link in layout.links:
        if link.labelled:
            _draw_label(axes, link)
    _draw_legend(axes, plan, layout)
    try:
        # without a date and with a fixed salt, equal plans give equal files
        metadata = {"Date": None} if target.suffix.lower() == ".svg" else None
        with matplotlib.rc_context({"svg.hashsalt": "plan", "svg.fonttype": "none"}):
            figure.savefig(target, dpi=_DOTS_PER_INCH, metadata=metadata)
    except OSError as error:
        raise AnalysisError(f"{target}: {error.strerror or error}") from error
    return target


def _draw_title(axes: "Axes", plan: Plan, layout: Layout) -> None:
    whole = plan.total()
    axes.text(
        MARGIN, layout.height - 32, "Tensors between tasks, per step", size=15, weight="bold",
        color=_INK,
    )  # fmt: skip
    parts = [f"{_count(whole.edges, 'tensor')}, {_size(whole)}"]
    if whole.unknown:
        parts.append(f"{whole.unknown} of unknown size")
    parts.append(f"{format_bytes(plan.registered_bytes)} registered")
    text = " · ".join(parts) if whole.edges else "no tensor crosses between tasks"
    axes.text(MARGIN, layout.height - 52, text, size=9.5, color=_QUIET)


def _draw_box(axes: "Axes", box: Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = (box.x - BOX_WIDTH / 2, box.y - box.height / 2)
    axes.add_patch(
        FancyBboxPatch(
            corner, BOX_WIDTH, box.height, boxstyle="round,pad=0,rounding_size=7",
            facecolor=_BOX, edgecolor=_FRAME, linewidth=1.1, zorder=3,
        )
    )  # fmt: skip
    name = box.name if len(box.name) <= 18 else f"{box.name[:17]}…"
    axes.text(
        box.x, box.y + 8, name, size=11.5, weight="bold", color=_INK, ha="center", va="center",
        zorder=4, parse_math=False,
    )  # fmt: skip
    memory = f"{format_bytes(box.registered)} registered"
    axes.text(box.x, box.y - 9, memory, size=8, color=_QUIET, ha="center", va="center", zorder=4)


def _draw_link(axes: "Axes", link: Link) -> None:
    curve, head = _cut_for_head(link)
    normals = _normals(curve)
    offset = -link.width / 2
    for name, share in _shares(link):
        inner, outer = offset, offset + link.width * share
        ribbon = np.vstack([curve + normals * inner, (curve + normals * outer)[::-1]])
        axes.fill(*ribbon.T, color=COLORS[name], alpha=0.82, linewidth=0, zorder=2)
        offset = outer
    dominant = max(_shares(link), key=lambda pair: pair[1])[0]
    axes.fill(*head.T, color=COLORS[dominant], linewidth=0, zorder=2)


def _cut_for_head(link: Link) -> tuple[Points, Points]:
    """Return the curve up to the arrow's head, and the three corners of the head."""
    curve = link.curve()
    half = link.width / 2 + 3
    length = min(half * 1.3 + 2, 17)
    distance = np.hypot(*(curve - curve[-1]).T)
    last = int(np.flatnonzero(distance >= length)[-1])
    tip, base = curve[-1], curve[last]
    along = (tip - base) / np.hypot(*(tip - base))
    foot = tip - along * length
    across = np.array([-along[1], along[0]])
    head = np.array([tip, foot + across * half, foot - across * half])
    return np.vstack([curve[: last + 1], foot[None]]), head


def _normals(curve: Points) -> Points:
    tangent = np.gradient(curve, axis=0)
    tangent /= np.maximum(np.hypot(*tangent.T), 1e-9)[:, None]
    return np.column_stack([-tangent[:, 1], tangent[:, 0]])


def _shares(link: Link) -> list[tuple[str, float]]:
    """Return each mode's part of the bytes, or of the tensors where no bytes are known."""
    whole = link.whole
    found = [(name, link.modes[name]) for name in MODES if name in link.modes]
    if whole.bytes:
        return [(name, traffic.bytes / whole.bytes) for name, traffic in found]
    return [(name, traffic.edges / whole.edges) for name, traffic in found]


def _draw_label(axes: "Axes", link: Link) -> None:
    curve = link.curve()
    x, y = curve[round(link.label_at * (len(curve) - 1))]
    axes.text(
        x, y, f"{_size(link.whole)}\n{_count(link.whole.edges, 'tensor')}", size=7.5, color=_INK,
        ha="center", va="center", linespacing=1.15, zorder=5,
        bbox={"boxstyle": "round,pad=0.28", "facecolor": _PAPER, "edgecolor": "none", "alpha": 0.9},
    )  # fmt: skip


def _draw_legend(axes: "Axes", plan: Plan, layout: Layout) -> None:
    from matplotlib.patches import Rectangle

    x = MARGIN
    for name, traffic in plan.by_mode().items():
        if traffic.edges == 0:
            continue
        axes.add_patch(Rectangle((x, LEGEND / 2 - 5), 20, 10, color=COLORS[name], linewidth=0))
        text = f"{name} ({traffic.edges})"
        axes.text(x + 26, LEGEND / 2, text, size=9, color=_INK, va="center")
        x += 44 + 5.6 * len(text)
    labelled = sum(link.labelled for link in layout.links)
    if labelled < len(layout.links):
        note = f"labels: the {labelled} widest of {len(layout.links)} links"
        right = layout.width - MARGIN
        axes.text(right, LEGEND / 2, note, size=8, color=_QUIET, va="center", ha="right")


def _size(traffic: Traffic) -> str:
    if not traffic.bytes:
        return "unknown size" if traffic.unknown else "0 B"
    return f"{'≥ ' if traffic.unknown else ''}{format_bytes(traffic.bytes)}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
