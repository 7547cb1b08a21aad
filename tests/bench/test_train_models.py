"""The measurement of the models runs, compares what it must and says all of it."""

import json
from pathlib import Path

import pytest

from bench.models import MODELS
from tests.support import forked

ROOT = Path(__file__).parents[2]
MAIN = """
import runpy
from bench.support import python
from tests.support import forked
python.starter = forked.start
runpy.run_module("bench.train_models", run_name="__main__", alter_sys=True)
"""
MODES = {"static", "dynamic", "inline", "grpc"}
PLAN = {"hits", "misses", "slot_allocations", "promotions", "demotions"}
ROW = {
    *{"model", "variables_mib", "steps", "measured", "ms", "ratio", "equal", "finite", "losses"},
    *{"mib_per_step", "total_mib_per_step", "static_share", "not_copied_share"},
    *{"copied_mib_per_step", "inline_copied_mib_per_step", "staged_mib_per_step"},
    *{"staged_tensors", "registrations", "plan", "fallback_reasons", "errors"},
}


@pytest.mark.timeout(150)
def test_a_model_is_measured_over_both_protocols_and_in_one_process(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    words = ["--models", "gru", "--repeat", "6", "--json", str(answer)]
    ran = forked.run(["-c", MAIN, *words], directory=ROOT, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert "gru" in ran.stdout

    report = json.loads(answer.read_text())
    assert set(report) == {"machine", "batch", "repeat", "warm_up", "rows", "failed"}
    assert (report["batch"], report["repeat"], report["failed"]) == (2, 6, {})
    (row,) = report["rows"]
    assert set(row) == ROW
    assert (row["model"], row["measured"]) == ("gru", 6)
    for times in row["ms"].values():
        assert set(times) == {"median", "minimum", "p90", "low", "high", "resolved"}

    losses = row["losses"]
    assert set(losses) == set(row["ms"]) == {"grpc", "rdma", "local"}
    assert losses["grpc"] == losses["rdma"] == losses["local"]
    assert row["equal"] is True
    assert row["finite"] is True
    assert [len(step) for step in losses["rdma"]] == [2] * row["steps"]
    assert losses["rdma"][0] != losses["rdma"][-1], "the model is trained"

    sent = row["mib_per_step"]
    assert set(sent) == MODES
    assert sent["grpc"] == 0
    # Two workers, each of which gets all weights and sends all gradients.
    assert sum(sent.values()) == pytest.approx(4 * MODELS["gru"].mib, abs=0.1)
    assert row["total_mib_per_step"] == pytest.approx(sum(sent.values()))
    assert row["plan"] is None or set(row["plan"]) == PLAN
    assert (row["fallback_reasons"], row["errors"]) == ({}, {})
