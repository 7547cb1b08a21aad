"""Computes the layout of a picture of a plan, in points (1/72 inch), y upwards.

Jobs are columns; the job with the most traffic is in the middle. Each link has its own ports at its
two boxes, so links do not overlap there.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from graph_analyzer.plan import Plan, Traffic, total
from rdma_transport.units import short

MAX_TASKS_PER_JOB = 12
"""Further tasks of a job share one box."""
MAX_LABELS = 16

BOX_WIDTH, TITLE, LEGEND, MARGIN = 136.0, 74.0, 44.0, 44.0
WIDEST, THINNEST = 24.0, 1.8
_BOX_HEIGHT, _BETWEEN_BOXES, _BETWEEN_COLUMNS, _LEAST_WIDTH = 54.0, 30.0, 310.0, 560.0
_LABELLED_PORT, _PORT, _BULGE = 30.0, 9.0, 130.0
_CURVE_POINTS = 64

Points = NDArray[np.float64]


@dataclass(eq=False)
class Box:
    """One task, or the tasks of a job that share a box; x and y are its center."""

    name: str
    job: str
    tasks: int = 0
    registered: int = 0
    column: int = 0
    x: float = 0
    y: float = 0
    height: float = _BOX_HEIGHT


@dataclass(eq=False)
class Link:
    """All tensors from one box to another; ``start`` and ``end`` are its ports."""

    source: Box
    destination: Box
    modes: dict[str, Traffic]
    width: float = THINNEST
    labelled: bool = False
    start: tuple[float, float] = (0, 0)
    end: tuple[float, float] = (0, 0)
    label_at: float = 0.5

    @property
    def whole(self) -> Traffic:
        """The traffic of all modes."""
        return total(self.modes)

    @property
    def bends(self) -> bool:
        """Whether both ends are in one column, so that the link is a curve on one side."""
        return self.source.column == self.destination.column

    def curve(self) -> Points:
        """Return points along the center of the link, from start to end."""
        (x0, y0), (x1, y1) = self.start, self.end
        reach = _BULGE if self.bends else (x1 - x0) / 2
        controls = np.array([(x0, y0), (x0 + reach, y0), (x1 + reach, y1), (x1, y1)])
        if not self.bends:
            controls[2] = (x1 - reach, y1)
        t = np.linspace(0, 1, _CURVE_POINTS)[:, None]
        weights = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
        result: Points = weights @ controls
        return result


Ends = dict[tuple[Box, int], list[tuple[Link, bool]]]
"""At a side of a box: the links there, and whether they leave it."""


@dataclass
class Layout:
    """The whole picture."""

    width: float
    height: float
    boxes: list[Box] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)


def lay_out(plan: Plan) -> Layout:
    """Place every task and link of ``plan``."""
    by_task = _boxes(plan)
    boxes = list(dict.fromkeys(by_task.values()))
    links = _links(plan, by_task)
    _choose_columns(boxes, links)
    ends = _ends(links)
    for box in boxes:
        sides = (_side_height(ends[box, side]) for side in (-1, 1))
        box.height = max(_BOX_HEIGHT, *sides)
    columns = max((box.column for box in boxes), default=0) + 1
    bulge = _BULGE if any(link.bends for link in links) else 0.0
    inner = columns * BOX_WIDTH + (columns - 1) * _BETWEEN_COLUMNS
    width = max(_LEAST_WIDTH, inner + 2 * MARGIN + bulge)
    height = _place_boxes(boxes, (width - inner - bulge) / 2)
    _place_ends(_ends(links))
    return Layout(width, height, boxes, links)


def _boxes(plan: Plan) -> dict[str, Box]:
    jobs: dict[str, list[str]] = defaultdict(list)
    names = [task.name for task in plan.tasks]
    names += [name for edge in plan.tensors for name in (edge.source, edge.destination)]
    for name in dict.fromkeys(names):
        jobs[short(name).split(":")[0]].append(name)
    registered = {task.name: task.slot_bytes + task.source_bytes for task in plan.tasks}
    found: dict[str, Box] = {}
    for job, tasks in jobs.items():
        own = len(tasks) if len(tasks) <= MAX_TASKS_PER_JOB else MAX_TASKS_PER_JOB - 1
        rest = Box(f"{job}: {len(tasks) - own} more", job)
        for index, task in enumerate(tasks):
            box = Box(short(task), job) if index < own else rest
            box.tasks += 1
            box.registered += registered.get(task, 0)
            found[task] = box
    return found


def _links(plan: Plan, boxes: dict[str, Box]) -> list[Link]:
    merged: dict[tuple[Box, Box], Link] = {}
    for (source, destination), modes in plan.by_link().items():
        ends = boxes[source], boxes[destination]
        link = merged.setdefault(ends, Link(*ends, {}))
        for name, traffic in modes.items():
            before = link.modes.get(name, Traffic())
            link.modes[name] = total({"before": before, "more": traffic})
    links = sorted(merged.values(), key=lambda link: -link.whole.bytes)
    most = max((link.whole.bytes for link in links), default=0) or 1
    for index, link in enumerate(links):
        link.width = max(THINNEST, WIDEST * link.whole.bytes / most)
        link.labelled = index < MAX_LABELS
    return links


def _choose_columns(boxes: list[Box], links: list[Link]) -> None:
    traffic: dict[str, int] = dict.fromkeys((box.job for box in boxes), 0)
    for link in links:
        if link.source.job != link.destination.job:
            for end in (link.source, link.destination):
                traffic[end.job] += link.whole.bytes
    order: list[str] = []
    for index, job in enumerate(sorted(traffic, key=lambda job: (-traffic[job], job))):
        order.insert(len(order) if index % 2 else 0, job)
    if len(order) == 2:
        order.sort()
    for box in boxes:
        box.column = order.index(box.job)


def _ends(links: list[Link]) -> Ends:
    """The links at each side (-1 left, 1 right) of each box, from the top down."""
    ends: Ends = defaultdict(list)
    for link in links:
        side = 1 if link.bends or link.source.column < link.destination.column else -1
        ends[link.source, side].append((link, True))
        ends[link.destination, side if link.bends else -side].append((link, False))
    for (_, side), there in ends.items():
        there.sort(key=lambda end: _order(end, side))
    return ends


def _order(end: tuple[Link, bool], side: int) -> tuple[float, bool]:
    link, leaves = end
    other = link.destination if leaves else link.source
    # on both sides the same direction above, so that the two links of a pair do not cross
    return -other.y, leaves == (side < 0)


def _room(link: Link) -> float:
    return max(link.width + 8, _LABELLED_PORT if link.labelled else _PORT)


def _side_height(there: list[tuple[Link, bool]]) -> float:
    return sum(_room(link) for link, _ in there) + 8


def _place_boxes(boxes: list[Box], left: float) -> float:
    columns: dict[int, list[Box]] = defaultdict(list)
    for box in boxes:
        columns[box.column].append(box)
    heights = {
        column: sum(box.height for box in there) + _BETWEEN_BOXES * (len(there) - 1)
        for column, there in columns.items()
    }
    tallest = max(heights.values(), default=_BOX_HEIGHT)
    for column, there in columns.items():
        top = LEGEND + MARGIN / 2 + (tallest + heights[column]) / 2
        for box in there:
            box.x = left + column * (BOX_WIDTH + _BETWEEN_COLUMNS) + BOX_WIDTH / 2
            box.y = top - box.height / 2
            top -= box.height + _BETWEEN_BOXES
    return tallest + TITLE + LEGEND + MARGIN


def _place_ends(ends: Ends) -> None:
    crowd: dict[tuple[Link, bool], int] = {}
    for (box, side), there in ends.items():
        y = box.y + _side_height(there) / 2 - 4
        for link, leaves in there:
            port = (box.x + side * BOX_WIDTH / 2, y - _room(link) / 2)
            y -= _room(link)
            if leaves:
                link.start = port
            else:
                link.end = port
            crowd[link, leaves] = len(there)
    for link, _ in crowd:
        # near the end with fewer links, where they are still apart and do not cross
        near_source = crowd[link, True] < crowd[link, False]
        link.label_at = 0.5 if link.bends else 0.1 if near_source else 0.84
