"""The measurement of the models runs, compares what it must and says all of it."""

import json
from pathlib import Path

import jsonschema
import pytest

from bench.models import MODELS
from bench.report import schema
from tests.support import forked

ROOT = Path(__file__).parents[2]
MAIN = """
import runpy
from bench.support import python
from tests.support import forked
python.starter = forked.start
runpy.run_module("bench.train_models", run_name="__main__", alter_sys=True)
"""


@pytest.mark.timeout(150)
def test_a_model_is_measured_over_both_protocols_and_in_one_process() -> None:
    words = ["--models", "gru", "--repeat", "6", "--json"]
    ran = forked.run(["-c", MAIN, *words], directory=ROOT, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    document = json.loads(ran.stdout)
    jsonschema.Draft202012Validator(schema()).validate(document)
    assert document["command"] == f"python -m bench.train_models {' '.join(words)}"
    (result,) = document["results"]
    assert (result["reasons"], result["problems"]) == ({}, [])
    rows = {row["protocol"]: row for row in result["rows"]}
    assert set(rows) == {"grpc", "rdma", "local"}
    for row in rows.values():
        assert (row["name"], row["iterations"], row["wrong"]) == ("gru", 6, 0)
        assert row["series"]["losses"] == rows["grpc"]["series"]["losses"]
    losses = rows["rdma"]["series"]["losses"]
    assert {len(step) for step in losses} == {2}
    assert losses[0] != losses[-1], "the model is trained"

    sent, more = rows["rdma"]["sent"], rows["rdma"]["more"]
    assert sent["grpc"]["bytes"] == 0
    # Two workers, each of which gets all weights and sends all gradients.
    assert more["MiB/step"] == pytest.approx(4 * MODELS["gru"].mib, abs=0.1)
    assert set(more) == {"MiB/step", "static %", "not copied %", "registrations", "slots"}
