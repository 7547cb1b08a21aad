"""The doctor's checks one by one, on hosts that are made of files."""

import os
import subprocess
from pathlib import Path

import pytest

from rdma_transport import wheels
from rdma_transport.doctor import host as local
from rdma_transport.doctor import keras, limits, software, verbs
from rdma_transport.doctor.context import Context, Need
from rdma_transport.doctor.result import FAIL, PASS, PLACES, SKIP, WARN, Result
from rdma_transport.doctor.run import exit_code
from rdma_transport.doctor.system import System
from tests.support.command import ROOT

GIB = 2**30


def host(root: Path, **files: str) -> System:
    """Files of a host; in their names `__` is a slash."""
    files = {"proc__meminfo": "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB"} | files
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return System(root)


def context(there: System, tensors: int = 0) -> Context:
    return Context(system=there, need=Need("/job:ps", tensors, 0, 3, 0) if tensors else None)


@pytest.mark.parametrize(
    ("limit", "tensors", "status"),
    [(None, GIB, PASS), (2 * GIB, GIB, WARN), (GIB, GIB, FAIL), (8 << 20, 0, FAIL)],
)
def test_a_limit_that_holds_the_plan_may_still_not_hold_the_arena(
    limit: int | None, tensors: int, status: str
) -> None:
    asked = context(System(), tensors)
    memlock = {
        "limit": limit,
        "begin": 10 << 20,
        "ring": 1 << 16,
        "help": "  shell: ulimit -l unlimited",
    }
    asked.__dict__["survey"] = {"memlock": memlock, "ports": [{"name": "mlx5_0:1"}]}
    assert verbs.check_memlock(asked).status == status


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "sentence"),
    [
        (1, "", "ImportError: libcuda", "ImportError: libcuda"),
        (0, '\n{"target": "", "version": "2.20.0", "seconds": 1}', "x\nrdma_transport: not loaded: "
         "it was built", "not loaded"),
        (0, '\n{"error": "No server factory", "version": "2.21.0", "seconds": 1}', "", "No server"),
    ],
)  # fmt: skip
def test_a_server_that_cannot_be_made(code: int, stdout: str, stderr: str, sentence: str) -> None:
    result = software._judge(subprocess.CompletedProcess([], code, stdout, stderr))
    assert result.status == FAIL
    assert sentence in result.found
    assert result.fix


@pytest.mark.parametrize(
    ("installed", "status", "fix"),
    [
        ([], WARN, 'install "tensorflow==2.21.*"'),
        ([("tensorflow", "2.20.1")], FAIL, 'install "tensorflow==2.21.*"'),
        ([("tensorflow-cpu", "2.20.1")], FAIL, 'install "tensorflow-cpu==2.21.*"'),
        ([("tensorflow-cpu", "2.21.3")], PASS, ""),
        ([("tensorflow", "2.21.9")], PASS, ""),
        (
            [("tensorflow", "2.21.9"), ("tensorflow-cpu", "2.21.9")],
            WARN,
            "uninstall -y tensorflow tensorflow-cpu && ",
        ),
    ],
)
def test_versions_of_tensorflow(
    installed: list[tuple[str, str]], status: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "installed", lambda: installed)
    monkeypatch.setattr(wheels, "MINOR", "2.21")
    found = software.check_tensorflow(Context())
    assert found.status == status
    assert fix in found.fix.get("shell", "")
    assert bool(wheels.refusal()) == (not installed or status == FAIL)


@pytest.mark.parametrize(
    ("installed", "legacy", "status", "sentence"),
    [
        ({"keras": "3.15.1"}, "", PASS, 'for fit, pip install --no-deps "tf-keras=='),
        ({"keras": "3.15.1", "tf-keras": "2.21.0"}, "0", PASS, "for fit, import tf_keras (2.21.0)"),
        ({"keras": "3.15.1", "tf-keras": "2.21.0"}, "1", PASS, "tf.keras is tf-keras 2.21.0"),
        ({"keras": "3.15.1"}, "true", FAIL, "tf-keras is not installed"),
        ({}, "", SKIP, "not installed"),
    ],
)
def test_which_keras_is_active(
    installed: dict[str, str],
    legacy: str,
    status: str,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keras, "version_of", lambda name: installed.get(name, ""))
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", legacy)
    found = keras.check_keras(Context())
    assert found.status == status
    assert sentence in found.found
    assert bool(found.fix) == (status == FAIL)


def test_memory_limits_of_containers_are_found_wherever_they_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = host(tmp_path / "a", proc__self__cgroup="0::/", sys__fs__cgroup__memory__max="x")
    (tmp_path / "a/sys/fs/cgroup/memory.max").write_text(f"{2 * GIB}\n")
    assert inside.memory_limit() == (2 * GIB, "/sys/fs/cgroup/memory.max")
    assert context(inside).arena_limit == 2 * GIB * 3 // 4
    assert limits.check_memory(context(inside)).status == PASS
    assert limits.check_memory(context(inside, 3 * GIB)).status == FAIL

    # Outside a container the limit is that of a slice.
    unit = host(tmp_path / "b", proc__self__cgroup="0::/system.slice/job.service")
    limit = tmp_path / "b/sys/fs/cgroup/system.slice/memory.max"
    limit.parent.mkdir(parents=True)
    limit.write_text(f"{2 * GIB}\n")
    assert context(unit).arena_limit == 2 * GIB * 3 // 4
    assert limits.check_memory(context(unit)).status == PASS
    with monkeypatch.context() as environment:
        environment.setenv("RDMA_TRANSPORT_ARENA_SIZE", "3GiB")
        found = limits.check_memory(context(unit))
    assert found.status == WARN
    assert "export RDMA_TRANSPORT_ARENA_SIZE=1536MiB" in found.fix["shell"]

    legacy = host(tmp_path / "c", proc__self__cgroup="5:cpu,memory:/docker/x\n0::/")
    old = tmp_path / "c/sys/fs/cgroup/memory/memory.limit_in_bytes"
    old.parent.mkdir(parents=True)
    old.write_text(f"{2**63 - 4096}\n")
    assert legacy.memory_limit() is None
    old.write_text(f"{GIB}\n")
    assert legacy.memory_limit() == (GIB, "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def test_a_limit_on_threads_is_found(tmp_path: Path) -> None:
    there = host(tmp_path, proc__self__cgroup="0::/", sys__fs__cgroup__pids__max="")
    (tmp_path / "sys/fs/cgroup/pids.max").write_text("100\n")
    assert limits.check_threads(context(there)).status == WARN
    (tmp_path / "sys/fs/cgroup/pids.max").write_text("max\n")
    assert there.task_limit() is None


def test_devices_that_a_container_was_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = host(tmp_path, sys__class__infiniband__mlx5_0__fw_ver="16.35")
    monkeypatch.setitem(os.environ, "RDMA_TRANSPORT_LIBIBVERBS", "/nowhere.so")
    without = verbs.check_devices(context(there))
    assert (without.status, "--device=/dev/infiniband" in without.fix["docker"]) == (FAIL, True)
    assert verbs.check_library(context(there)).status == FAIL
    host(tmp_path, dev__infiniband__uverbs0="")
    assert "libibverbs finds none" in verbs.check_devices(context(there)).why
    monkeypatch.setattr(verbs.os, "access", lambda path, mode: False)
    closed = verbs.check_devices(context(there))
    assert closed.found == "no access to /dev/infiniband/uverbs0"


def test_exit_codes() -> None:
    def code(required: str, **statuses: str) -> int:
        return exit_code([Result(name, status, "x") for name, status in statuses.items()], required)

    assert code("", clock=WARN, gid=SKIP) == 0
    assert code("", memlock=FAIL) == 1
    assert code("", memlock=FAIL, peer_address=FAIL) == 4
    assert code("verbs", verbs_transfer=SKIP, peer_address=FAIL) == 3
    assert code("verbs", verbs_transfer=PASS, peer_transport=FAIL) == 3
    assert code("verbs", verbs_transfer=PASS, memory=FAIL) == 1


def test_the_advice_on_locked_memory_is_that_of_the_documentation() -> None:
    fix = verbs.fixes.from_help(Context().survey["memlock"]["help"])
    assert set(fix) == set(PLACES)
    text = (ROOT / "docs" / "fabrics.md").read_text()
    for word in ("ulimit -l unlimited", "LimitMEMLOCK=infinity", "--ulimit memlock=-1", "IPC_LOCK"):
        assert any(word in line for line in fix.values())
        assert word in text


def test_a_clock_that_asks_the_kernel_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "sys__devices__system__clocksource__clocksource0__current_clocksource"
    assert checks_clock(host(tmp_path / "a", **{path: "tsc"})) == PASS
    assert checks_clock(host(tmp_path / "b", **{path: "hpet"})) == WARN
    monkeypatch.setattr(local, "cost", lambda call: 10.0 if call is tuple else 900.0)
    assert checks_clock(host(tmp_path / "c", **{path: "tsc"})) == WARN


def checks_clock(there: System) -> str:
    return local.check_clock(context(there)).status
