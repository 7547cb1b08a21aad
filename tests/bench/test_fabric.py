"""`bench.fabric` as a program: what it measures over each fabric, and what ends it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil

from bench.support.cluster import free_port
from tests.support.deadlines import eventually, patient

ROOT = Path(__file__).parents[2]
SOON = 30.0
BENCH = [sys.executable, "-m", "bench.fabric"]


def run_bench(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*BENCH, *arguments],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
        cwd=ROOT,
    )


def test_each_fabric_is_measured(fabric: str) -> None:
    result = run_bench("--json", "--sizes", "64,4KiB..16KiB", "--iterations", "20")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["fabric"] == fabric
    assert [row["bytes"] for row in report["rows"]] == [64, 4096, 16384]
    for row in report["rows"]:
        assert ("memcpy_gbps" in row) == (fabric == "shm")
        assert min(row["write_gbps"], row["read_gbps"]) > 0
        for name in ("write_us", "read_us", "notify_us"):
            assert 0 < row[name]["min"] <= row[name]["p50"] <= row[name]["max"]
            assert row[name]["p99"] is None  # 20 samples do not reach beyond it
    assert report["notifications_per_second"] > 0
    assert report["wrong"] == 0


def test_two_commands() -> None:
    place = f"127.0.0.1:{free_port()}"
    listening = subprocess.Popen([*BENCH, "--listen", place], cwd=ROOT)
    try:
        result = run_bench(
            "--connect", place, "--fabric", "shm", "--sizes", "64", "--iterations", "10"
        )
        assert result.returncode == 0, result.stderr
        assert "fabric: shm, same host" in result.stdout
        assert listening.wait(patient(SOON)) == 0
    finally:
        listening.kill()
        listening.wait()


def test_when_the_other_side_dies() -> None:
    place = f"127.0.0.1:{free_port()}"
    listening = subprocess.Popen([*BENCH, "--listen", place], cwd=ROOT)
    arguments = ("--connect", place, "--fabric", "shm", "--iterations", "100000000")
    measuring = subprocess.Popen([*BENCH, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        connections = psutil.Process(measuring.pid).net_connections
        assert eventually(lambda: "ESTABLISHED" in [each.status for each in connections()], SOON)
        time.sleep(0.3)  # into the measurements
        assert measuring.poll() is None
        listening.kill()
        _, errors = measuring.communicate(timeout=patient(SOON))
        assert measuring.returncode == 1
        assert errors.strip()
        assert "Traceback" not in errors
    finally:
        for process in (listening, measuring):
            process.kill()
            process.wait()


def test_without_another_side() -> None:
    result = run_bench("--connect", "127.0.0.1:1", "--wait", "0.1")
    assert result.returncode == 4, result.stderr
    assert "no process listens" in result.stderr
