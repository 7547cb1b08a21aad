"""`rdma-transport doctor` on the real libibverbs: what works, and what a plain user lacks."""

import json

import pytest

from tests.verbs.conftest import Pair
from tools.guest.guest import PYTHON, Guest, Result

COMMAND = [str(PYTHON), "-m", "rdma_transport.cli"]
PORT = 23500
SECONDS = 120
pytestmark = pytest.mark.timeout(SECONDS + 60, func_only=True)


def checks(result: Result) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(result.stdout)["checks"]}


def examine(guest: Guest, *more: str) -> Result:
    return guest.run([*COMMAND, "doctor", "--quick", "--json", *more], SECONDS)


def test_two_hosts_move_bytes(guests: Pair) -> None:
    here, there = guests
    listener = there.start([*COMMAND, "doctor", "--listen", str(PORT), "--wait", str(SECONDS)])
    listener.wait_for("listening", SECONDS)
    result = examine(here, "--fabric", "verbs", "--peer", f"{there.address}:{PORT}")
    found = checks(result.check())
    assert found["gid"]["found"] == f"index 1: RoCE v2, {here.address}"
    assert found["verbs_transfer"]["status"] == "PASS"
    route = f"verbs, rxe0:1 {here.address} -> {there.address}"
    assert route in found["peer_transfer"]["found"]
    assert "received 1 MiB" in listener.wait(SECONDS).check().stdout


def test_a_user_who_may_lock_little_memory_is_told_the_fix(guests: Pair) -> None:
    words = " ".join([*COMMAND, "doctor", "--quick", "--json", "--fabric", "verbs"])
    result = guests[0].run(["sh", "-c", f"ulimit -l 1024; exec {words}"], SECONDS, uid=1000)
    found = checks(result)
    assert result.returncode == 3
    assert {name for name, check in found.items() if check["status"] == "FAIL"} == {
        "memlock",
        "verbs_transfer",
    }
    assert "ulimit -l unlimited" in found["memlock"]["fix"]["shell"]
