"""The paper's evaluation: a little of it, as `make paper` runs it."""

import json
import re
from pathlib import Path

import pytest

from bench.paper import document
from bench.support.timing import Summary
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
    grpc, rdma = record["results"]["convergence"]
    assert grpc["losses"] == rdma["losses"]
    assert grpc["losses"][-1] < grpc["losses"][0] / 2
    page = (tmp_path / "benchmarks.md").read_text()
    assert page == document.write(record["machine"], record["results"])
    assert f"| {sum(rdma['seconds']):.2f} |" in page
    for picture in re.findall(r"\]\((.*?)\)", page):
        assert (tmp_path / picture).read_text().startswith("<?xml")


def test_a_page_of_unequal_losses_says_so() -> None:
    row = {"losses": [1.0] * 10, "seconds": [0.5] * 10, "accuracy": 0.5}
    rows = [{"protocol": "grpc", **row}, {"protocol": "rdma", **row, "losses": [0.9] * 10}]
    page = document.write("a machine", {"convergence": rows})
    assert "are NOT equal." in page
    assert "## Models" not in page


def test_computed_edges_and_passed_references_have_their_own_tables() -> None:
    def times(median: float) -> dict[str, float | bool]:
        low, high = median - 1.0, median + 1.0
        return Summary(median, low, high, low, high).as_dict()

    ways = {
        name: times(10.0 * i) for i, name in enumerate(("grpc", "rdma", "copying", "dynamic"), 1)
    }
    passed = {"bytes": 4, **ways, "local": times(1.0)}
    computed = {**passed, "floor": times(7.0)}
    page = document.write("a machine", {"message_sizes": [computed], "passed_references": [passed]})
    first, second = page.split("## Passing a reference")
    assert "| 4 B | 10.0 | 20.0 | 30.0 | 40.0 | < 2 | 7.0 | 0.5x |" in first
    noisy = {**computed, "rdma": {**ways["rdma"], "low": 5.0}}
    assert "| 7.0 | noisy |" in document.write("a machine", {"message_sizes": [noisy]})
    least = {**noisy, "grpc": times(43.0)}
    assert "| 7.0 | > 2.0x |" in document.write("a machine", {"message_sizes": [least]})
    assert "| 4 B | 10.0 | 20.0 | 30.0 | 40.0 | < 2 |\n" in second
