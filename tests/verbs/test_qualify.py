"""`rdma-transport qualify` on the real libibverbs: on one port, and on two of which one fails."""

import json
from typing import Any

import pytest

from tests.support.qualifying import FEW
from tests.verbs.conftest import Pair
from tools.guest.guest import PYTHON

COMMAND = [str(PYTHON), "-m", "rdma_transport.cli", "qualify", *FEW, "--fabric", "verbs"]
SECONDS = 300
PORT = "23600"
# What takes 0.1 s on a host takes half a second in a guest on a busy machine.
CARD = {"RDMA_TRANSPORT_RETRY_TIMEOUT": "268ms"}
pytestmark = pytest.mark.timeout(SECONDS + 120, func_only=True)


def qualified(guests: Pair, *more: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run it on both, with `more` on the second one; return the claims by name."""
    job = ["--master-addr", guests[0].address, "--master-port", PORT, "--no-training"]
    job += ["--wait", str(SECONDS)]
    env = CARD | (env or {})
    other = guests[1].start([*COMMAND, *job, "--node-rank", "1", *more], env=env)
    ran = guests[0].run([*COMMAND, *job, "--node-rank", "0", "--json"], SECONDS, env=env)
    assert ran.returncode in (0, 1), ran.stderr + str(other.output())
    assert other.wait(SECONDS).returncode == ran.returncode
    claims = {claim["name"]: claim for claim in json.loads(ran.stdout)["claims"]}
    failed = [claim for claim in claims.values() if claim["status"] == "FAIL"]
    assert not failed, failed
    return claims


def test_one_port(guests: Pair) -> None:
    claims = qualified(guests)
    assert claims["route"]["found"].startswith("verbs, rxe0:1 ")
    assert "ib_write_bw" in claims["reference"]["found"]
    assert claims["reference"]["status"] != "SKIP"


def test_traffic_goes_on_when_one_of_two_ports_goes_down(guests: Pair) -> None:
    for guest in guests:
        guest.add_port()
    claims = qualified(guests, "--link-down", "eth1", env={"RDMA_TRANSPORT_PORTS": "2"})
    assert "rxe1:1" in claims["route"]["found"]
    assert claims["link"]["status"] == "PASS"
    assert "traffic went on" in claims["link"]["found"]
