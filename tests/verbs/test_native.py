"""The C++ tests over the verbs fabric, in one guest: its card talks to itself."""

import re

import pytest

from tools.guest.guest import Guest
from tools.guest.image import REPOSITORY

SECONDS = 600
BINARIES = REPOSITORY / "build" / "debug" / "tests" / "native"
SENT = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
VERBS = {"RDMA_TRANSPORT_FABRIC": "verbs"}


@pytest.mark.timeout(SECONDS + 60, func_only=True)
@pytest.mark.parametrize("name", ["fabric_test", "protocol_test", "static_test"])
def test_binary(guest: Guest, name: str) -> None:
    binary = BINARIES / name
    assert binary.exists(), f"{binary} is missing; `make test-verbs` builds it"
    sent = int(guest.run(["cat", SENT]).check().stdout)
    result = guest.run([binary, "--gtest_brief=1"], SECONDS, env=VERBS)
    if result.returncode != 0:
        pytest.fail(f"{name}: exit status {result.returncode}\n{result.stdout}{result.stderr}")
    ran = re.search(r"\[=+\] (\d+) test", result.stdout)
    assert ran is not None, result.stdout
    assert int(ran[1]) > 0, result.stdout
    # Not over shared memory by mistake.
    assert int(guest.run(["cat", SENT]).check().stdout) > sent
