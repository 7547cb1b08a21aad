"""The benchmark between two hosts, which makes hosts of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.namespaces import Hosts

pytestmark = pytest.mark.timeout(120)


def test_rows_of_a_limited_link_and_of_another(tmp_path: Path, hosts: Hosts) -> None:
    assert hosts.both  # there can be hosts
    found = tmp_path / "found.json"
    few = [
        "--sizes",
        "256KiB",
        "--rates",
        "1gbit,none",
        "--workers",
        "3",
        "--ops",
        "all_reduce,all_to_all",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.two_hosts", *few, "--front-ends", "numpy", "--json", found],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(found.read_text())["rows"]
    assert [(row["op"], row["rate"], row["right"]) for row in rows] == [
        (op, rate, True) for rate in ("1gbit", "none") for op in ("all_reduce", "all_to_all")
    ]
    assert all(set(row["us"]) == {"rdma", "no shared memory"} for row in rows)
