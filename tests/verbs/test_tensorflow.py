"""TensorFlow on two hosts with two ports each: the same bits as over gRPC, and what happens when a
port, the way or the other host is gone. One run of TensorFlow for all of it: its import takes a
minute in a guest."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.verbs.conftest import Machines, Pair
from tools.guest.guest import PYTHON, Process
from tools.guest.image import REPOSITORY
from tools.guest.packages import UnavailableError

pytestmark = pytest.mark.timeout(420, func_only=True)
PROGRAMS = REPOSITORY / "tests" / "verbs" / "programs"
# The card of a guest reports the loss within 3 s. Now and then it does not, and the silence of the
# peer counts: after 8 s, by default.
FAILS_WITHIN = 10.0
# What takes 0.1 s on a host takes half a second in a guest on a busy machine.
CARD = {"RDMA_TRANSPORT_RETRY_TIMEOUT": "268ms"}
RETRIES_SECONDS = 1.9  # seven times that
PEER_TIMEOUT_SECONDS = 8.0
# A port is tried ever less often.
RETURNS_WITHIN = 60.0
# What each port sends at both ends of a quarter of the large tensors, which are 36 MiB there and
# back.
MIN_PACKETS = (9 << 20) // 4096


class Run:
    """The trainer's events, as they come."""

    def __init__(self, guests: Pair) -> None:
        self.guests = guests
        for guest in guests:
            guest.add_port()
        addresses = [guest.address for guest in guests]
        both = CARD | {"RDMA_TRANSPORT_PORTS": "2"}
        module = [str(PYTHON), "-m", "tests.support.member", "1", *addresses]
        self.member: Process = guests[1].start(module, env=both)
        self.trainer: Process = guests[0].start(
            [str(PYTHON), "-m", "tests.verbs.programs.trainer", *addresses], env=both
        )
        self.seen = 0

    def events(self) -> list[dict[str, Any]]:
        lines = self.trainer.output()[0].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def next(self, event: str, seconds: float) -> dict[str, Any]:
        """The next event of this name; those before it are passed over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for position, found in enumerate(self.events()[self.seen :]):
                if found["event"] == event:
                    self.seen += position + 1
                    return found
            assert self.trainer.poll() is None, "".join(self.trainer.output())
            time.sleep(0.2)
        raise AssertionError(f"no {event!r} within {seconds} s\n{self.said()}")

    def said(self) -> str:
        trainer, member = ("".join(each.output()) for each in (self.trainer, self.member))
        return f"{trainer[-6000:]}\nmember:\n{member[-3000:]}"


@pytest.fixture(scope="module")
def run(machines: Machines) -> Iterator[Run]:
    try:
        yield Run(machines.pair())
    except UnavailableError as error:
        pytest.skip(str(error))


def test_training_has_the_bits_of_grpc_and_all_tensors_go_by_verbs(run: Run) -> None:
    grpc = run.next("trained by grpc", 380)
    rdma = run.next("trained by rdma", 120)
    assert grpc["losses"] == rdma["losses"]
    assert rdma["sent"]["grpc"]["tensors"] == rdma["received"]["grpc"]["tensors"] == 0
    assert rdma["received"]["static"]["tensors"] > 0
    assert rdma["errors"] == {}
    (peer,) = rdma["peers"]
    assert peer["transport"] == "verbs"
    assert "10.7.0.1 -> 10.7.0.2" in peer["reason"]


def test_large_tensors_use_both_ports_and_have_the_bits_of_grpc(run: Run) -> None:
    grpc = run.next("exchanged by grpc", 120)
    rdma = run.next("exchanged by rdma", 120)
    assert grpc["sums"] == rdma["sums"]
    assert rdma["sent"]["grpc"]["tensors"] == rdma["received"]["grpc"]["tensors"] == 0
    ports = {port["name"]: port["active"] for port in rdma["ports"]}
    assert ports == {"rxe0:1": True, "rxe1:1": True}
    for device in ("rxe0", "rxe1"):
        counter = f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts"
        counts = [int(guest.run(["cat", counter]).check().stdout) for guest in run.guests]
        assert sum(counts) > MIN_PACKETS, (device, counts, rdma["ports"], rdma["sent"])


def test_the_status_shows_both_ports(run: Run) -> None:
    status = run.guests[0].python("-m", "rdma_transport", "status").check().stdout
    assert "rxe0:1" in status
    assert "rxe1:1" in status


def test_a_short_loss_of_the_link_fails_no_step(run: Run) -> None:
    """Soft-RoCE may end its retries, or stop them; then the steps go on through the other port."""
    run.next("ok by verbs, ports: 2", RETURNS_WITHIN)
    seen = run.seen
    # In one program, ahead of all others: it is to be over before the card's retries are.
    change = "qdisc replace dev eth0 root"
    loss = f"(echo {change} netem loss 100%; sleep 0.1; echo {change} pfifo_fast) | tc -batch -"
    run.guests[0].run(["nice", "-n", "-20", "sh", "-c", loss]).check()
    time.sleep(max(2 * RETRIES_SECONDS, PEER_TIMEOUT_SECONDS / 2) + 2)
    if run.events()[seen:]:
        run.next("ok by verbs, ports: 1", 0.1)
        run.next("ok by verbs, ports: 2", RETURNS_WITHIN)
    assert len(run.events()[seen:]) in (0, 2), run.said()


@pytest.mark.parametrize("card", [1, 0])
def test_steps_go_on_while_one_of_two_links_is_down(run: Run, card: int) -> None:
    seen = run.seen
    run.guests[0].link(False, card)
    run.next("ok by verbs, ports: 1", 60)
    time.sleep(2)
    run.guests[0].link(True, card)
    run.next("ok by verbs, ports: 2", RETURNS_WITHIN)
    assert [event["event"] for event in run.events()[seen : run.seen]] == [
        "ok by verbs, ports: 1",
        "ok by verbs, ports: 2",
    ]


def test_two_links_that_stay_down_are_an_error_and_then_steps_recover(run: Run) -> None:
    for card in (0, 1):
        run.guests[0].link(False, card)
    try:
        begun = time.monotonic()
        failed = run.next("failed", 30)
        assert time.monotonic() - begun < 2 * FAILS_WITHIN
    finally:
        for card in (0, 1):
            run.guests[0].link(True, card)
    assert failed["seconds"] < FAILS_WITHIN
    assert failed["error"] == "UnavailableError", failed
    assert "/job:worker/replica:0/task:1" in failed["message"]
    run.next("ok by verbs, ports: 2", RETURNS_WITHIN)


def test_a_killed_peer_is_an_error_that_names_it(run: Run) -> None:
    run.member.kill()
    failed = run.next("failed", 30)
    assert failed["error"] == "UnavailableError", failed
    assert failed["seconds"] < FAILS_WITHIN
