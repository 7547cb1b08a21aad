"""The benchmark of accelerators, with the pretend one."""

import json
from pathlib import Path

import pytest

from bench.accelerators import environment
from tests.support import accelerators, forked

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
def test_crossings_are_measured_and_none_goes_by_grpc(tmp_path: Path) -> None:
    accelerators.library()
    answer = tmp_path / "answer.json"
    words = ["--sizes", "4,2000000", "--repeat", "6", "--json", str(answer)]
    ran = forked.run(["-m", "bench.accelerators", *words], directory=ROOT, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert "4 crossings between two PRETENDs" in ran.stdout
    rows = json.loads(answer.read_text())["rows"]
    assert [row["bytes"] for row in rows] == [4, 2_000_000]
    assert all(row["wrong"] == 0 and row["sent"]["grpc"]["tensors"] == 0 for row in rows)
    assert all(row[protocol]["median"] > 0 for row in rows for protocol in ("grpc", "rdma"))
    assert all(row["copies"]["median"] > 0 for row in rows)
    assert all({"grpc_each", "rdma_each"} <= row.keys() for row in rows)


@pytest.mark.parametrize(("chosen", "visible"), [(None, "0"), ("1", "1")])
def test_tasks_with_gpus_see_them(
    chosen: str | None, visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert environment("GPU", "rdma")["CUDA_VISIBLE_DEVICES"] == visible
