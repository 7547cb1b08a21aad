"""Tables say what the plan says, whatever the names; pictures are drawn, whatever the plan."""

import dataclasses
import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from graph_analyzer import AnalysisError, Plan, Task, capacity, report
from rdma_transport.tables import Fitted
from tests.graph_analyzer.test_plan import SERVER, WORKERS, sample
from tests.support.planned import MATRIX, PS, W0, W1, plan_of, product, use

pytestmark = pytest.mark.timeout(60)


def shown(table: Table) -> list[list[str]]:
    """The rows of a table: the words of each cell."""
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(table)
    lines = console.export_text().splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]


def test_edges_are_sorted_by_bytes_with_unknown_sizes_last() -> None:
    rows = shown(report.edge_table(sample()))
    sizes = [row[3] for row in rows]
    assert sizes == ["12.25 MiB"] * 4 + ["16.00 KiB"] * 2 + ["4 B"] * 2 + ["?"] * 2
    first = next(row for row in rows if row[0] == "grad[w0]:0")
    assert first == [
        "grad[w0]:0",  # brackets are not taken for markup
        "worker:0 → ps:0",
        "float32[784, 4096]",
        "12.25 MiB",
        "static",
        "2 × 12.25 MiB",
        "grad/MatMul (MatMul) via Reshape",
        "the shape is known before the step",
    ]
    assert "w0 (VarHandleOp) [variable]" in {row[6] for row in rows}
    assert "string[…]" in {row[2] for row in rows}


def test_edges_name_the_accelerators_at_their_ends() -> None:
    def build() -> None:
        with tf.device(f"{W0}/device:GPU:1"):
            made = product()
        use(made, PS)
        use(made, f"{W1}/device:GPU:0")

    plan = plan_of(build)
    rows = shown(report.edge_table(plan))
    ends = {"worker:0 GPU:1 → ps:0", "worker:0 GPU:1 → worker:1 GPU:0"}
    assert {row[1] for row in rows if row[0] == "m:0"} == ends
    assert {(edge.mode, edge.bytes) for edge in plan.tensors if edge.name == "m:0"} == {
        ("static", MATRIX)
    }
    assert all(edge.slots for edge in plan.tensors if edge.name == "m:0")


def test_memory_links_and_totals() -> None:
    plan = sample()
    assert shown(report.memory_table(plan))[0] == [
        # 4 slots of 12.25 MiB, at most 2 in use; 1 source; both; 2 (w0 + b0); 2 (gradient + loss)
        *("ps:0", "49.00 MiB", "24.50 MiB", "12.25 MiB", "12.25 MiB", "61.25 MiB"),
        *("24.53 MiB", "24.50 MiB"),
    ]
    links = shown(report.link_table(plan))
    assert links[0][:4] == ["ps:0 → worker:0", "2", "12.27 MiB", "–"]
    assert links[2] == [*("worker:0 → ps:0", "3", "12.25 MiB", "1", "12.25 MiB", "–", "4 B", "0 B")]
    totals = shown(report.mode_table(plan))
    assert totals[0] == ["static", "4", "49.00 MiB", "99.9 %", "–"]
    assert totals[-1] == ["all", "10", "49.03 MiB", "", "2"]


def test_a_printed_plan_names_what_it_leaves_out_and_sums_control_edges_in_a_line() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    report.print_plan(sample(), console, rows=3)
    text = console.export_text()
    assert "7 smaller edges are not shown" in text
    assert "2 control edges carry no bytes" in text
    assert "^go" not in text
    assert "321 nodes analyzed in 12.50 ms" in text
    assert "slots 73.50 MiB instead of 98.00 MiB" in text


def test_a_narrow_terminal_gets_whole_words() -> None:
    plan = sample()
    console = Console(width=80, record=True, file=io.StringIO())
    report.print_plan(plan, console)
    console.print(Fitted(report.capacity_table([capacity(plan, 8, 2, bandwidth=12.5e9)])))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for words in ("task worker:0", "received per step", "server QPs 8", "limit server port"):
        assert words in text
    for edge in plan.tensors:
        assert f"tensor {edge.name}" in text


def many(workers: int) -> Plan:
    """The sample's first worker, many times over."""
    plan = sample()
    tasks, edges = [plan.tasks[0]], []
    for index in range(workers):
        name = f"/job:worker/task:{index}"
        tasks.append(dataclasses.replace(plan.tasks[1], name=name))
        for edge in plan.edges[:6]:
            ends = {"source": edge.source, "destination": edge.destination}
            moved = {key: name if end == WORKERS[0] else end for key, end in ends.items()}
            edges.append(dataclasses.replace(edge, **moved))  # type: ignore[arg-type]
    return dataclasses.replace(plan, tasks=tuple(tasks), edges=tuple(edges))


def test_layout_gives_links_widths_by_bytes_and_boxes_that_do_not_overlap() -> None:
    pytest.importorskip("numpy")
    from graph_analyzer.layout import MAX_TASKS_PER_JOB, WIDEST, lay_out

    layout = lay_out(many(40))
    # one server and the most boxes of workers, the last for those that have none of their own
    assert len(layout.boxes) == 1 + MAX_TASKS_PER_JOB
    assert layout.boxes[-1].name == f"worker: {40 - (MAX_TASKS_PER_JOB - 1)} more"
    assert sum(box.tasks for box in layout.boxes) == 41
    assert sum(link.whole.bytes for link in layout.links) == many(40).total().bytes
    widest = max(layout.links, key=lambda link: link.width)
    assert widest.width == WIDEST
    for link in layout.links:
        share = link.whole.bytes / widest.whole.bytes
        assert link.width == pytest.approx(max(1.8, WIDEST * share))
    for box in layout.boxes:
        assert 0 < box.x < layout.width
        for other in layout.boxes:
            if other is not box and other.column == box.column:
                assert abs(other.y - box.y) >= (other.height + box.height) / 2
    for link in layout.links:
        for box, (_, y) in ((link.source, link.start), (link.destination, link.end)):
            assert abs(y - box.y) <= box.height / 2


def test_pictures_are_written_and_name_every_task(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from graph_analyzer.picture import draw

    png = draw(sample(), tmp_path / "plan.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    svg = draw(sample(), str(tmp_path / "plan.svg")).read_text("utf-8")
    words = set(ElementTree.fromstring(svg).itertext())
    assert {"ps:0", "worker:0", "worker:1", "static (4)", "grpc (2)"} <= words
    assert {"12.27 MiB", "2 tensors", "≥ 12.25 MiB", "3 tensors"} <= words
    assert draw(sample(), tmp_path / "again.svg").read_text("utf-8") == svg


@pytest.mark.parametrize(
    "case", ["nothing", "no edges", "inside one job", "to itself", "odd names", "no bytes"]
)
def test_odd_plans_are_drawn(tmp_path: Path, case: str) -> None:
    pytest.importorskip("matplotlib")
    from graph_analyzer.picture import draw

    plan, edge = sample(), sample().edges[4]  # an edge of unknown size
    changes: dict[str, Any] = {
        "nothing": {"tasks": (), "edges": ()},
        "no edges": {"edges": ()},
        "inside one job": {
            "edges": (dataclasses.replace(edge, source=WORKERS[0], destination=WORKERS[1]),)
        },
        "to itself": {"edges": (dataclasses.replace(edge, destination=edge.source),)},
        "odd names": {
            "tasks": (Task("$x_{^2$", 1, 1, 1, 1, 1, 1),),
            "edges": (dataclasses.replace(edge, source="$x_{^2$", destination="b" * 50),),
        },
        "no bytes": {"edges": (dataclasses.replace(edge, source=SERVER, bytes=0),)},
    }[case]
    made = draw(dataclasses.replace(plan, **changes), tmp_path / "odd.svg")
    assert made.stat().st_size > 1000


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from graph_analyzer.picture import draw

    with pytest.raises(AnalysisError, match=r"\.png or \.svg"):
        draw(sample(), tmp_path / "plan.jpg")
    with pytest.raises(AnalysisError, match="No such file"):
        draw(sample(), tmp_path / "missing" / "plan.png")
