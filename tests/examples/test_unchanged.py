"""The example that `make run` runs last: a script for one process, alone and on two ranks."""

import io

import pytest
from rich.console import Console

from examples.unchanged import compare

pytestmark = pytest.mark.timeout(200)


def test_two_ranks_learn_what_one_process_learns() -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    assert compare(console)
    text = console.export_text()
    (line,) = [line for line in text.splitlines() if "accuracy" in line]
    alone, shared = (float(cell.split()[0]) for cell in line.split("│")[2:4])
    assert alone > 85
    assert shared == pytest.approx(alone, abs=1)
    assert "weights after training: equal within rounding" in text
