"""The benchmark of accelerators, with the pretend one."""

import json
from pathlib import Path

import pytest

from bench.accelerators import environment
from tests.support import accelerators, forked

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
def test_crossings_are_measured_and_none_goes_by_grpc() -> None:
    accelerators.library()
    words = ["--sizes", "4,2000000", "--repeat", "6", "--json"]
    ran = forked.run(["-m", "bench.accelerators", *words], directory=ROOT, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    (result,) = json.loads(ran.stdout)["results"]
    assert "4 crossings between two PRETENDs" in result["title"]
    kinds = [("step", "grpc"), ("step", "rdma"), ("copies", "local"), ("each", "grpc")]
    assert [(row["test"], row["protocol"], row["bytes"]) for row in result["rows"]] == [
        (*kind, size) for size in (4, 2_000_000) for kind in [*kinds, ("each", "rdma")]
    ]
    for row in result["rows"]:
        assert row["wrong"] == (0 if row["test"] == "step" else None)
        assert row["us"]["p50"] > 0
        assert row["sent"] is None or row["sent"]["grpc"]["tensors"] == 0


@pytest.mark.parametrize(("chosen", "visible"), [(None, "0"), ("1", "1")])
def test_tasks_with_gpus_see_them(
    chosen: str | None, visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert environment("GPU", "rdma")["CUDA_VISIBLE_DEVICES"] == visible
