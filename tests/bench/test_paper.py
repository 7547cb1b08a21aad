"""The paper's evaluation: a little of it, as `make paper` runs it."""

import json
import re
from pathlib import Path

import pytest

from bench.paper import document
from bench.report import Result, Row, Times
from tests.support import forked
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(120)


def test_a_page_with_a_table_and_a_plot_of_what_was_measured(tmp_path: Path) -> None:
    result = forked.run(
        ["-m", "bench.paper", "--quick", "--only", "convergence", "--out", str(tmp_path)],
        timeout=patient(100),
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip() == str(tmp_path / "benchmarks.md")
    record = json.loads((tmp_path / "benchmarks.json").read_text())
    results = {name: Result.from_dict(each) for name, each in record["results"].items()}
    grpc, rdma = (row.series for row in results["convergence"].rows)
    assert grpc["losses"] == rdma["losses"]
    assert grpc["losses"][-1] < grpc["losses"][0] / 2
    page = (tmp_path / "benchmarks.md").read_text()
    assert page == document.write(record["machine"], results)
    assert f"| {sum(rdma['seconds']):.2f} |" in page
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", page):
        assert (tmp_path / picture).read_text().startswith("<?xml")


def result(*rows: Row) -> Result:
    return Result("", "", {}, "p50", list(rows))


def test_a_page_of_unequal_losses_says_so() -> None:
    series = {"grpc": [1.0] * 10, "rdma": [0.9] * 10}
    rows = [Row("step", "digits", 0, name, 10, None, more={"accuracy": 0.5}) for name in series]
    for row in rows:
        row.series.update(losses=series[row.protocol], seconds=[0.5] * 10)
    page = document.write("a machine", {"convergence": result(*rows)})
    assert "are NOT equal." in page
    assert "<!-- models -->\n\nNot measured.\n\n<!-- /models -->" in page


def test_the_table_of_edges_says_what_noise_hides() -> None:
    def row(test: str, way: str, median: float, least: float = 1.0) -> Row:
        return Row(test, "4 B", 4, way, 7, Times(median, low=median - least, high=median + 1))

    ways = {"grpc": 10.0, "rdma": 20.0, "copying": 30.0, "dynamic": 40.0}
    edges = {way: row("edge", way, median) for way, median in ways.items()}
    edges |= {"local": row("hop", "local", 1.0), "floor": row("hop", "floor", 7.0)}

    def page(**other: Row) -> str:
        computed = result(*{**edges, **other}.values())
        return document.write("a machine", {"message_sizes": computed})

    assert "| 4 B | 10.0 | 20.0 | 30.0 | 40.0 | < 2 | 7.0 | 0.5x |" in page()
    noisy = row("edge", "rdma", 20.0, 15.0)
    assert "| 7.0 | noisy |" in page(rdma=noisy)
    assert "| 7.0 | > 2.0x |" in page(rdma=noisy, grpc=row("edge", "grpc", 43.0))
