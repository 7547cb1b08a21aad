"""`rdma-transport doctor`: each check sees its fault, says why, and says what fixes it."""

import json
import re
import resource
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from rdma_transport.doctor.result import FAIL, PASS, PLACES, SKIP, WARN
from tests.graph_analyzer.test_plan import SAMPLE
from tests.support import fake_verbs
from tests.support.command import (
    NO_LIBRARIES,
    checks,
    clean_environment,
    run,
    run_in_terminal,
    words,
)
from tests.support.deadlines import patient
from tests.support.faulty_libfabric import ABSENT

pytestmark = pytest.mark.timeout(90)

GIB = 2**30
CARDLESS = pytest.mark.skipif(
    Path("/sys/class/infiniband").exists(), reason="this host has an RDMA device"
)


def fake(text: str = "", **settings: str) -> dict[str, str]:
    return fake_verbs.environment("auto", text, **settings) | ABSENT


def doctor(*arguments: object, **more: object) -> dict[str, dict]:
    return checks(run("doctor", "--quick", "--json", *arguments, **more))  # type: ignore[arg-type]


@CARDLESS
def test_a_host_without_a_card_is_healthy() -> None:
    ran = run("doctor", "--quick", "--json", settings=NO_LIBRARIES)
    assert (ran.returncode, ran.stderr) == (0, "")
    found = checks(ran)
    assert {name for name, check in found.items() if check["status"] == SKIP} == {
        *("autoload", "verbs_library", "rdma_devices", "rdma_port", "gid", "mtu", "fork"),
        *("verbs_transfer", "libfabric_library", "gpu_direct", "gpu_topology", "secret"),
    }
    assert "shm, same host" in found["shm_transfer"]["found"]
    required = run("doctor", "--quick", "--json", "--fabric", "verbs", settings=NO_LIBRARIES)
    assert required.returncode == 3
    assert checks(required)["rdma_devices"]["status"] == FAIL


def test_a_card_that_works_is_seen_and_tried() -> None:
    ran = run("doctor", "--quick", "--json", "--fabric", "verbs", settings=fake())
    assert (ran.returncode, ran.stderr) == (0, "")
    found = checks(ran)
    assert found["gid"]["found"] == "index 3: RoCE v2, 10.0.0.1"
    assert found["mtu"]["found"] == "1024 bytes per packet; active 1024, maximum 4096"
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
        ("active_mtu=512", {}, "mtu", WARN, "512 bytes per packet", "mtu 9000"),
        ("", {"MTU": "4096"}, "mtu", WARN, "is larger than the active MTU", "mtu 9000"),
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
    assert any(line in fix for fix in found[check]["fix"].values())
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
    assert tried["fix"] == check["fix"]
    assert check["status"] == FAIL
    assert check["found"].startswith("1.00 MiB; the plan needs")
    assert largest["name"] in check["found"]
    assert set(check["fix"]) == set(PLACES)
    assert "ulimit -l unlimited" in check["fix"]["shell"]
    named = doctor("--plan", plan, "--task", "/job:ps/task:0", settings=fake(), limits=few)
    assert "/job:ps" in named["memlock"]["found"]


@pytest.mark.parametrize(
    ("limits", "check", "status", "line"),
    [
        ({resource.RLIMIT_NOFILE: 300}, "open_files", WARN, "LimitNOFILE=65536"),
        ({resource.RLIMIT_FSIZE: 64 << 20}, "file_size", WARN, "ulimit -f unlimited"),
        ({resource.RLIMIT_AS: 3 * GIB}, "address_space", FAIL, "LimitAS=infinity"),
    ],
)
def test_limits_of_the_process(limits: dict[int, int], check: str, status: str, line: str) -> None:
    found = doctor(settings=NO_LIBRARIES, limits=limits)[check]
    assert found["status"] == status
    assert any(line in fix for fix in found["fix"].values())


def test_too_little_address_space_fails_the_real_transfer_too() -> None:
    found = doctor(settings=NO_LIBRARIES, limits={resource.RLIMIT_AS: 3 * GIB})["shm_transfer"]
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
    found = doctor(settings=NO_LIBRARIES | settings)
    assert (found[check]["status"], sentence in found[check]["found"]) == (status, True)
    # One bad value hides nothing else.
    assert found["shm_transfer"]["status"] == PASS


def test_a_malformed_list_of_devices() -> None:
    found = doctor(settings=fake(DEVICES="^^fake"))
    assert found["settings"]["status"] == FAIL
    assert "RDMA_TRANSPORT_DEVICES='^^fake'" in found["settings"]["found"]
    assert {found[name]["status"] for name in ("rdma_devices", "rdma_port", "gid")} == {SKIP}


def test_tensorflow_really_makes_a_server() -> None:
    ran = run("doctor", "--json", settings=NO_LIBRARIES)
    assert ran.returncode == 0
    found = checks(ran)["autoload"]
    assert found["status"] == PASS
    assert "created a server with protocol='rdma'" in found["found"]


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
    assert ran.stdout.splitlines()[-1] == "17 passed, 1 failed, 8 skipped"


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
        (["--plan", "{plan}", "--task", "/job:gpu/task:0"], "it has /job:"),
        (["--task", "/job:ps/task:0"], "--plan plan.json"),
        (["--peer", "nowhere"], "give HOST:PORT"),
        (["--peer", "host:99999"], "give HOST:PORT"),
        (["--listen", "x"], "give PORT or HOST:PORT"),
        (["--listen", "1", "--peer", "a:1"], "not for use with --peer"),
        (["--tf-config", "missing.json"], "missing.json"),
        (["--wait", "0"], "greater than 0"),
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
        words("doctor"), env=clean_environment(NO_LIBRARIES), stdout=subprocess.PIPE, text=True
    )
    watched = psutil.Process(process.pid)
    deadline = time.monotonic() + patient(20)
    while not watched.children() and time.monotonic() < deadline:
        time.sleep(0.02)
    children = watched.children()
    assert children
    process.send_signal(signal.SIGINT)
    assert process.wait(patient(20)) == 130
    assert not psutil.wait_procs(children, timeout=patient(20))[1]
