"""How much of what ranks exchange real steps hide: `overlaps.py` takes them on two ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from graph_analyzer import AnalysisError, report
from graph_analyzer.overlap import Overlap, measure
from tests.graph_analyzer.test_cli import valid
from tests.graph_analyzer.test_reductions import TRAIN, launched, plan

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    ran = launched(str(Path(__file__).with_name("overlaps.py")))
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_a_step_apart_computes_what_one_process_does(answers: dict[str, Any]) -> None:
    """Rank 1 takes none of these steps, so they exchange nothing."""
    assert answers["alone"] == [True, True]


@pytest.mark.parametrize("case", ["dense", "factors", "bf16", "whole", "nested"])
def test_steps_are_measured(answers: dict[str, Any], case: str) -> None:
    found = answers[case]
    assert found["steps"] == 6
    assert min(found["step"], found["apart"], found["exchange"]) > 0
    assert 0 <= found["hidden"] <= 1


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("looped", "--steps cannot measure all_reduce of while/"),
        ("fails", "--steps: the step failed: "),
        ("no function", "--steps needs a function that takes a step"),
        ("unknown input", "the shape of the input x:0 is not known"),
    ],
)
def test_what_cannot_be_measured(answers: dict[str, Any], case: str, why: str) -> None:
    assert answers[case].startswith(why)
    assert "\n" not in answers[case]


@pytest.mark.parametrize(
    ("step", "apart", "hidden"),
    [(1.3, 1.0, 0.25), (1.0, 1.0, 1.0), (0.9, 1.0, 1.0), (1.4, 1.0, 0.0), (9.0, 1.0, 0.0)],
)
def test_the_share_that_is_hidden(step: float, apart: float, hidden: float) -> None:
    found = Overlap(5, step, apart, exchange=0.4)
    assert found.hidden == pytest.approx(hidden)
    assert found.as_dict()["hidden"] == found.hidden
    text = report.overlap_text(found)
    assert text.startswith("Median of 5 steps: ")
    assert text.endswith(
        f"The exchange alone takes 400.00 ms: {100 * hidden:.0f} % of it is hidden."
    )


def test_a_process_alone_measures_nothing() -> None:
    with pytest.raises(AnalysisError, match="--steps measures ranks"):
        measure(tf.function(lambda: tf.zeros([])), [], 3)


def test_the_command_measures_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ran = launched(*plan(script, "step", "--steps", "3", "--json"))
    assert ran.returncode == 0, ran.stderr
    found = valid(ran.stdout)["reductions"]
    assert (found["measured"]["steps"], found["ranks"]) == (3, 2)
