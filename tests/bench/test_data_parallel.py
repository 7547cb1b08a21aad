"""`rdma-transport bench data-parallel`: what it measures, skips and computes."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench import data_parallel, data_parallel_result
from bench.data_parallel import ALONE, BESIDE, OURS, Layout, Samples, parse_layout
from bench.data_parallel_cases import CASES, FIT, Case, bytes_of, cases_of
from bench.models.training import declared
from bench.report import schema
from tests.support.deadlines import patient

ROOT = Path(__file__).parents[2]
SECONDS = 240

pytestmark = pytest.mark.timeout(300)


def test_layouts() -> None:
    assert parse_layout("4") == Layout("4", 4)
    assert parse_layout("2x2@1gbit") == Layout("2x2@1gbit", 4, 2, "1gbit")
    for wrong in ("", "0", "3x1", "2@1gbit", "2x", "two"):
        with pytest.raises(ValueError, match="is not RANKS"):
            parse_layout(wrong)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"alexnet", "inception_v3", "vgg16"}))
def test_sizes_of_cases(name: str) -> None:
    variables = declared(CASES[name])
    assert len(variables) == CASES[name].variables
    nbytes = sum(variable.bytes for variable in variables)
    assert bytes_of(name) == pytest.approx(nbytes, abs=0.01 * 2**20)


def test_cases() -> None:
    assert cases_of(["fcn5", "dense-64"], [8]) == [
        Case("fcn5", "fcn5", 8),
        Case("dense-64", "dense-64", 8),
    ]
    assert [each.batch for each in cases_of(["fcn5", "dense-64", "lstm"])] == [32, 32, 2]
    assert [each.name for each in cases_of(["gru"], [1, 2])] == ["gru, batch 1", "gru, batch 2"]


def test_rows() -> None:
    found = {
        ("fcn5", OURS): Samples([30.0, 20.0, 21.0], [11.0, 10.0, 16.0], [0.0], [39.0, 40.0]),
        ("fcn5", "ddp"): Samples([51.0], [11.0], [1000.0]),
    }
    cases = cases_of(["fcn5"])
    ours, ddp = data_parallel_result.rows_of(Layout("2", 2), cases, [OURS, "ddp"], found)
    assert ours.more["unhidden"] == pytest.approx(10e3)
    assert ours.more["hidden"] == "75%"  # 10 of 39.5 ms are not
    assert ours.ratio is None
    # Some use shared memory on one host, so what went through interfaces says nothing there.
    assert ddp.more == {"unhidden": 40e3, "1/s apart": pytest.approx(2 * 32 / 0.011)}
    assert ddp.ratio == pytest.approx(4)
    assert ddp.per_second == pytest.approx(2 * 32 / 0.051)
    _, apart = data_parallel_result.rows_of(Layout("2x1", 2, 2), cases, [OURS, "ddp"], found)
    assert apart.more["bytes sent"] == 1000


def run(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench", "data-parallel", "--rounds", "1", "--json", *words]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=patient(SECONDS), check=False
    )
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    jsonschema.Draft202012Validator(schema()).validate(document)
    (result,) = document["results"]
    assert isinstance(result, dict)
    return result


def test_two_ranks_beside_others() -> None:
    result = run("--ranks", "1,2", "--models", FIT, "--compare", "unchanged,ddp")
    systems = {(row["test"].split(",")[0], row["name"], row["protocol"]) for row in result["rows"]}
    assert {("1", FIT, ALONE), ("2", FIT, OURS), ("2", FIT, "unchanged")} <= systems
    assert all(row["us"]["p50"] > 0 and row["per_second"] > 0 for row in result["rows"])
    if find_spec("torch") is None:
        assert f"{BESIDE['ddp']} was skipped: PyTorch is not installed." in result["notes"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
def test_two_hosts_and_a_way_to_send_gradients() -> None:
    result = run("--ranks", "2x1@1gbit", "--models", "variables", "--compare", "dense")
    assert {row["protocol"] for row in result["rows"]} == {OURS, "dense"}
    for row in result["rows"]:
        assert row["more"]["bytes sent"] > row["bytes"] / 2
        assert row["more"]["hidden"].endswith("%")


def test_a_library_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_parallel, "why_not", lambda system, layout: "")
    monkeypatch.setattr(data_parallel.python, "module", lambda name: ["-c", "raise SystemExit(1)"])
    found, skipped, failed = data_parallel.measure(
        Layout("2", 2), 1, ["ddp"], cases_of(["variables"]), 1, lambda part, what: None, {}
    )
    assert (found, skipped) == ({}, {})
    assert "ended" in failed["ddp, start"]
