"""`rdma-transport doctor`: each check sees its fault, says why, and says what mends it."""

import json
import os
import re
import resource
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from rdma_transport.doctor import host as local
from rdma_transport.doctor import room, software, verbs
from rdma_transport.doctor.case import Case, Need
from rdma_transport.doctor.examination import exit_code
from rdma_transport.doctor.result import FAIL, PASS, PLACES, SKIP, WARN, Result
from rdma_transport.doctor.surroundings import Surroundings
from tests.support import fake_verbs
from tests.support.command import ROOT, checks, run, run_in_terminal, surroundings, words
from tests.test_graph_analyzer_plan import SAMPLE

pytestmark = pytest.mark.timeout(90)

GIB = 2**30
ALONE = {"RDMA_TRANSPORT_LIBIBVERBS": "/nowhere/libibverbs.so.1"}
CARDLESS = pytest.mark.skipif(
    Path("/sys/class/infiniband").exists(), reason="this host has an RDMA device"
)


def fake(text: str = "", **settings: str) -> dict[str, str]:
    return fake_verbs.environment("auto", text, **settings)


def doctor(*arguments: object, **more: object) -> dict[str, dict]:
    return checks(run("doctor", "--quick", "--json", *arguments, **more))  # type: ignore[arg-type]


@CARDLESS
def test_a_host_without_a_card_is_healthy() -> None:
    ran = run("doctor", "--quick", "--json", settings=ALONE)
    assert (ran.returncode, ran.stderr) == (0, "")
    found = checks(ran)
    assert {name for name, check in found.items() if check["status"] == SKIP} == {
        *("autoload", "verbs_library", "rdma_devices", "rdma_port", "gid", "mtu", "fork"),
        "verbs_transfer",
    }
    assert "shm, same host" in found["shm_transfer"]["found"]
    required = run("doctor", "--quick", "--json", "--fabric", "verbs", settings=ALONE)
    assert required.returncode == 3
    assert checks(required)["rdma_devices"]["status"] == FAIL


def test_a_card_that_works_is_seen_and_tried() -> None:
    ran = run("doctor", "--quick", "--json", "--fabric", "verbs", settings=fake())
    assert (ran.returncode, ran.stderr) == (0, "")
    found = checks(ran)
    assert found["gid"]["found"] == "index 3: RoCE v2, 10.0.0.1"
    assert found["mtu"]["found"] == "1024 bytes a packet; 1024 active, 4096 at most"
    assert "verbs, fake_0:1 10.0.0.1 -> 10.0.0.1" in found["verbs_transfer"]["found"]
    assert found["shm_transfer"]["status"] == SKIP  # --fabric verbs is FABRIC=verbs


@pytest.mark.parametrize(
    ("text", "settings", "check", "status", "sentence", "line"),
    [
        ("port_state=down", {}, "rdma_port", FAIL, "port is DOWN", "ip link set dev"),
        ("open_error=EACCES", {}, "rdma_port", FAIL, "Permission denied", "/dev/infiniband"),
        ("", {"DEVICES": "mlx5"}, "rdma_port", FAIL, "not in RDMA_TRANSPORT_DEVICES", "fake_0"),
        ("", {"DEVICES": "fake,mlx5"}, "rdma_port", WARN, "mlx5: named by", "DEVICES=fake_0:1"),
        ("gids=none,none", {}, "gid", FAIL, "no usable GID", "--network=host"),
        ("", {"GID_INDEX": "9"}, "gid", FAIL, "beyond its table of 4", "GID_INDEX=auto"),
        ("", {"PKEY": "0x12"}, "gid", FAIL, "not in its table", "PKEY=auto"),
        ("gids=rocev1:10.0.0.1", {}, "gid", WARN, "RoCE v1", "ip addr add"),
        ("gids=rocev2:fe80::1", {}, "gid", WARN, "link-local", "ip addr add"),
        ("active_mtu=512", {}, "mtu", WARN, "512 bytes a packet", "mtu 9000"),
        ("", {"MTU": "4096"}, "mtu", WARN, "asks for more", "mtu 9000"),
        ("fork=disabled", {}, "fork", WARN, "disabled", "RDMAV_FORK_SAFE=1"),
        ("memlock=100000", {}, "verbs_transfer", FAIL, "Cannot allocate memory", "dmesg"),
        ("break_path=1;retry_ms=50", {}, "verbs_transfer", FAIL, "did not answer", "ibv_devinfo"),
    ],
)
def test_faults_of_cards_ports_and_settings(
    text: str, settings: dict[str, str], check: str, status: str, sentence: str, line: str
) -> None:
    ran = run("doctor", "--quick", "--json", settings=fake(text, **settings))
    assert ran.stderr == ""  # what the library would log is in the answer
    found = checks(ran)
    assert found[check]["status"] == status
    assert sentence in found[check]["found"] + found[check]["why"]
    assert any(line in mend for mend in found[check]["mend"].values())
    assert ran.returncode == (1 if status == FAIL else 0)
    others = {name for name, one in found.items() if one["status"] in (FAIL, WARN)}
    assert others == {check}


def plan_file(directory: Path) -> Path:
    path = directory / "plan.json"
    path.write_text(json.dumps(SAMPLE))
    return path


def test_locked_memory_is_compared_with_the_plans_need(tmp_path: Path) -> None:
    plan = plan_file(tmp_path)
    largest = max(SAMPLE["tasks"], key=lambda task: task["slot_bytes"] + task["source_bytes"])
    few = {resource.RLIMIT_MEMLOCK: 1 << 20}
    found = doctor("--plan", plan, settings=fake(), limits=few)
    check = found["memlock"]
    tried = found["verbs_transfer"]
    assert tried["found"].startswith("only 1 MiB of memory may be locked")
    assert tried["mend"] == check["mend"]
    assert check["status"] == FAIL
    assert check["found"].startswith("1.00 MiB; the plan needs")
    assert largest["name"] in check["found"]
    assert set(check["mend"]) == set(PLACES)
    assert "ulimit -l unlimited" in check["mend"]["shell"]
    named = doctor("--plan", plan, "--task", "/job:ps/task:0", settings=fake(), limits=few)
    assert "/job:ps" in named["memlock"]["found"]


@pytest.mark.parametrize(
    ("limit", "tensors", "status"),
    [(None, GIB, PASS), (2 * GIB, GIB, WARN), (GIB, GIB, FAIL), (8 << 20, 0, FAIL)],
)
def test_a_limit_that_holds_the_plan_may_still_not_hold_the_arena(
    limit: int | None, tensors: int, status: str
) -> None:
    asked = case(Surroundings(), tensors)
    memlock = {"limit": limit, "begin": 10 << 20, "help": "  shell: ulimit -l unlimited"}
    asked.__dict__["survey"] = {"memlock": memlock, "ports": [{"name": "mlx5_0:1"}]}
    assert verbs.check_memlock(asked).status == status


@pytest.mark.parametrize(
    ("limits", "check", "status", "line"),
    [
        ({resource.RLIMIT_NOFILE: 300}, "open_files", WARN, "LimitNOFILE=65536"),
        ({resource.RLIMIT_FSIZE: 64 << 20}, "file_size", WARN, "ulimit -f unlimited"),
        ({resource.RLIMIT_AS: 3 * GIB}, "address_space", FAIL, "LimitAS=infinity"),
    ],
)
def test_limits_of_the_process(limits: dict[int, int], check: str, status: str, line: str) -> None:
    found = doctor(settings=ALONE, limits=limits)[check]
    assert found["status"] == status
    assert any(line in mend for mend in found["mend"].values())


def test_too_little_address_space_fails_the_real_transfer_too() -> None:
    found = doctor(settings=ALONE, limits={resource.RLIMIT_AS: 3 * GIB})["shm_transfer"]
    assert found["status"] == FAIL
    assert "address space" in found["found"]


@pytest.mark.parametrize(
    ("settings", "check", "status", "sentence"),
    [
        ({"RDMA_TRANSPORT_SPIN": "5"}, "settings", FAIL, "RDMA_TRANSPORT_SPIN: '5'"),
        ({"RDMA_TRANSPORT_FABRIC": "ib"}, "settings", FAIL, "'ib' is not one of"),
        ({"RDMA_TRANSPORT_PEER_TIMEOUT": "0"}, "settings", FAIL, "must be above 0"),
        ({"RDMA_TRANSPORT_SPIM": "5us"}, "settings", WARN, "did you mean RDMA_TRANSPORT_SPIN?"),
        ({"RDMA_TRANSPORT_DISABLE": "1"}, "plugin", FAIL, "RDMA_TRANSPORT_DISABLE is set"),
    ],
)
def test_faults_of_the_environment(
    settings: dict[str, str], check: str, status: str, sentence: str
) -> None:
    found = doctor(settings=ALONE | settings)
    assert (found[check]["status"], sentence in found[check]["found"]) == (status, True)
    # One bad value hides nothing else.
    assert found["shm_transfer"]["status"] == PASS


def test_a_malformed_list_of_devices() -> None:
    found = doctor(settings=fake(DEVICES="^^fake"))
    assert found["settings"]["status"] == FAIL
    assert "RDMA_TRANSPORT_DEVICES='^^fake'" in found["settings"]["found"]
    assert {found[name]["status"] for name in ("rdma_devices", "rdma_port", "gid")} == {SKIP}


def test_tensorflow_really_makes_a_server() -> None:
    ran = run("doctor", "--json", settings=ALONE)
    assert ran.returncode == 0
    found = checks(ran)["autoload"]
    assert found["status"] == PASS
    assert "made a server with protocol='rdma'" in found["found"]


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
    assert result.mend


@pytest.mark.parametrize(
    ("installed", "status"),
    [
        (None, FAIL),
        (("tensorflow", "2.20.1"), FAIL),
        (("tensorflow-cpu", "2.21.3"), WARN),
        (("tensorflow", "2.21.9"), PASS),
    ],
)
def test_versions_of_tensorflow(
    installed: tuple[str, str] | None, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(software, "installed_tensorflow", lambda: installed)
    assert software.check_tensorflow(Case()).status == status


def host(root: Path, **files: str) -> Surroundings:
    """Files of a host; in their names `__` is a slash."""
    files = {"proc__meminfo": "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB"} | files
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Surroundings(root)


def case(there: Surroundings, tensors: int = 0) -> Case:
    return Case(surroundings=there, need=Need("/job:ps", tensors, 0, 3, 0) if tensors else None)


def test_memory_limits_of_containers_are_found_wherever_they_are_set(tmp_path: Path) -> None:
    inside = host(tmp_path / "a", proc__self__cgroup="0::/", sys__fs__cgroup__memory__max="x")
    (tmp_path / "a/sys/fs/cgroup/memory.max").write_text(f"{2 * GIB}\n")
    assert inside.memory_limit() == (2 * GIB, "/sys/fs/cgroup/memory.max")
    assert case(inside).arena_limit == 2 * GIB * 3 // 4
    assert room.check_memory(case(inside)).status == PASS
    assert room.check_memory(case(inside, 3 * GIB)).status == FAIL

    # Outside a container the limit is that of a slice, which the arena does not see.
    unit = host(tmp_path / "b", proc__self__cgroup="0::/system.slice/job.service")
    limit = tmp_path / "b/sys/fs/cgroup/system.slice/memory.max"
    limit.parent.mkdir(parents=True)
    limit.write_text(f"{2 * GIB}\n")
    found = room.check_memory(case(unit))
    assert found.status == WARN
    assert "export RDMA_TRANSPORT_ARENA_SIZE=1536MiB" in found.mend["shell"]

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
    assert room.check_threads(case(there)).status == WARN
    (tmp_path / "sys/fs/cgroup/pids.max").write_text("max\n")
    assert there.task_limit() is None


def test_devices_that_a_container_was_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = host(tmp_path, sys__class__infiniband__mlx5_0__fw_ver="16.35")
    monkeypatch.setitem(os.environ, "RDMA_TRANSPORT_LIBIBVERBS", "/nowhere.so")
    without = verbs.check_devices(case(there))
    assert (without.status, "--device=/dev/infiniband" in without.mend["docker"]) == (FAIL, True)
    assert verbs.check_library(case(there)).status == FAIL
    host(tmp_path, dev__infiniband__uverbs0="")
    assert "libibverbs shows none" in verbs.check_devices(case(there)).why
    monkeypatch.setattr(verbs.os, "access", lambda path, mode: False)
    closed = verbs.check_devices(case(there))
    assert closed.found == "no access to /dev/infiniband/uverbs0"


def test_exit_codes() -> None:
    def code(required: str, **statuses: str) -> int:
        return exit_code([Result(name, status, "x") for name, status in statuses.items()], required)

    assert code("", clock=WARN, gid=SKIP) == 0
    assert code("", memlock=FAIL) == 1
    assert code("", memlock=FAIL, peer_address=FAIL) == 4
    assert code("verbs", verbs_transfer=SKIP, peer_address=FAIL) == 3
    assert code("verbs", verbs_transfer=PASS, peer_path=FAIL) == 3
    assert code("verbs", verbs_transfer=PASS, memory=FAIL) == 1


def test_a_terminal_and_a_pipe_show_the_same_lines() -> None:
    settings = fake("port_state=down")
    code, coloured = run_in_terminal("doctor", "--quick", settings=settings)
    ran = run("doctor", "--quick", settings=settings)
    assert (code, ran.returncode) == (1, 1)
    assert "\x1b[" in coloured
    assert "\x1b[" not in ran.stdout

    def plain(text: str) -> list[str]:
        without = re.sub(r"\x1b\[[0-9;]*m", "", text)
        return [
            re.sub(r"\d+(\.\d+)? (ms|ns|GiB)", "N", line).rstrip() for line in without.splitlines()
        ]

    assert plain(coloured) == plain(ran.stdout)
    assert re.search(r"^FAIL  rdma_port  ", ran.stdout, re.MULTILINE)
    assert re.search(r"^      shell: rdma link; ip link set dev eth0 up", ran.stdout, re.MULTILINE)
    assert ran.stdout.splitlines()[-1] == "15 passed, 1 failed, 4 skipped"


def test_the_lines_for_the_place_where_it_runs_come_first() -> None:
    settings = fake("gids=none,none") | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    lines = run("doctor", "--quick", settings=settings).stdout.splitlines()
    failed = next(number for number, line in enumerate(lines) if line.startswith("FAIL  gid"))
    assert lines[failed + 1].startswith("      why: ")
    assert lines[failed + 2].startswith("      kubernetes: hostNetwork: true")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--plan", "missing.json"], "missing.json: No such file"),
        (["--plan", "{plan}", "--task", "/job:gpu/task:0"], "there are /job:"),
        (["--task", "/job:ps/task:0"], "--plan plan.json"),
        (["--peer", "nowhere"], "not HOST:PORT"),
        (["--peer", "host:99999"], "not HOST:PORT"),
        (["--listen", "x"], "not PORT or HOST:PORT"),
        (["--listen", "1", "--peer", "a:1"], "leave the others out"),
        (["--wait", "0"], "above 0"),
        (["--fabric", "tcp"], "'tcp'"),
    ],
)
def test_bad_usage_is_exit_code_2_and_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    plan = plan_file(tmp_path)
    ran = run("doctor", *(word.format(plan=plan) for word in arguments))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr


def test_ctrl_c_leaves_nothing_behind() -> None:
    process = subprocess.Popen(
        words("doctor"), env=surroundings(ALONE), stdout=subprocess.PIPE, text=True
    )
    watched = psutil.Process(process.pid)
    deadline = time.monotonic() + 20
    while not watched.children() and time.monotonic() < deadline:
        time.sleep(0.02)
    children = watched.children()
    assert children
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_a_reader_that_leaves_early_sees_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        ran = subprocess.run(
            words("doctor", "--quick"),
            env=surroundings(ALONE),
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
        )
    assert ran.stderr == ""


def test_the_advice_on_locked_memory_is_that_of_the_documentation() -> None:
    mend = verbs.mending.from_help(Case().survey["memlock"]["help"])
    assert set(mend) == set(PLACES)
    text = (ROOT / "docs" / "operations.md").read_text()
    for word in ("ulimit -l unlimited", "LimitMEMLOCK=infinity", "--ulimit memlock=-1", "IPC_LOCK"):
        assert any(word in line for line in mend.values())
        assert word in text


def test_a_clock_that_asks_the_kernel_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "sys__devices__system__clocksource__clocksource0__current_clocksource"
    assert checks_clock(host(tmp_path / "a", **{path: "tsc"})) == PASS
    assert checks_clock(host(tmp_path / "b", **{path: "hpet"})) == WARN
    monkeypatch.setattr(local, "cost", lambda call: 10.0 if call is tuple else 900.0)
    assert checks_clock(host(tmp_path / "c", **{path: "tsc"})) == WARN


def checks_clock(there: Surroundings) -> str:
    return local.check_clock(case(there)).status
