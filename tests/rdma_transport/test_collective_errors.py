"""Collectives that cannot succeed: every rank gets an error, and none hangs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from bench.support.ports import free_port
from tests.support import members
from tests.support.deadlines import patient
from tests.support.members import Error, Members

WRONG = [
    "size", "sizes", "dtype", "op", "collective", "strided", "read-only", "byte order", "object",
    "unknown op", "overlap", "no array",
]  # fmt: skip


@pytest.fixture(scope="module")
def lasting() -> Iterator[Members]:
    made = Members(3, "mixed")
    yield made
    made.end()


@pytest.fixture
def start() -> Iterator[Callable[..., Members]]:
    made: list[Members] = []

    def starter(size: int, fabric: str = "shm") -> Members:
        made.append(Members(size, fabric))
        made[-1].run(members.sums)
        return made[-1]

    yield starter
    for each in made:
        each.end()


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("guilty", [0, 2])
def test_a_wrong_call_is_an_error_on_every_rank(lasting: Members, kind: str, guilty: int) -> None:
    lasting.start(members.wrong, kind, guilty)
    answers = lasting.answers()
    assert all(isinstance(each, Error) for each in answers), answers
    others = [answer for rank, answer in enumerate(answers) if rank != guilty]
    assert all(f"rank {guilty} called" in answer for answer in others), answers
    assert lasting.run(members.sums) == [3, 3, 3]


def test_a_piece_of_another_size_is_an_error_on_every_rank(lasting: Members) -> None:
    lasting.start(members.wrong, "piece", 1)
    for answer in lasting.answers():
        assert "expects 16 bytes of rank 1, which sends 20" in answer
    assert lasting.run(members.sums) == [3, 3, 3]


@pytest.mark.parametrize(
    ("fabric", "call"),
    [("shm", call) for call in ("barrier", "all_reduce", "request", "recv", "recv any")]
    + [("shm", call) for call in ("test", "probe", "wait_for_message", "send")]
    + [("libfabric", "barrier"), ("verbs", "all_reduce"), ("mixed", "request"), ("mixed", "recv")]
    + [("verbs", "send"), ("libfabric", "probe")],
)
def test_a_killed_rank_ends_the_calls_of_all_others(
    start: Callable[..., Members], fabric: str, call: str
) -> None:
    group = start(3, fabric)
    waiting = [0, 2] if call in ("barrier", "all_reduce", "request", "recv any") else [0]
    group.start(members.waits, call, ranks=waiting)
    time.sleep(0.3)  # until they sleep
    group.kill(1)
    for answer in group.answers(waiting):
        assert isinstance(answer, Error)
        assert "rank 1 is gone" in answer


@pytest.mark.parametrize("fabric", ["shm", "libfabric", "verbs"])
def test_a_rank_that_is_killed_in_the_middle(start: Callable[..., Members], fabric: str) -> None:
    group = start(3, fabric)
    group.start(members.reduces_forever)
    time.sleep(0.5)
    group.kill(2)
    for answer in group.answers([0, 1]):
        assert "rank 2 is gone" in answer
    group.start(members.sums, ranks=[0, 1])
    for answer in group.answers([0, 1]):
        assert "rank 2 is gone" in answer  # from now on


def test_a_rank_that_is_killed_while_it_sends(start: Callable[..., Members]) -> None:
    group = start(2)
    group.start(members.sends_forever)
    time.sleep(0.5)
    group.kill(1)
    assert "rank 1 is gone" in group.answers([0])[0]


@pytest.mark.parametrize("call", ["barrier", "recv"])
def test_a_rank_that_is_stopped(start: Callable[..., Members], call: str) -> None:
    group = start(2, "libfabric")
    group.kill(1, signal.SIGSTOP)
    group.start(members.waits, call, ranks=[0])
    assert "rank 1 is gone: it has not answered" in group.answers([0])[0]


@pytest.mark.parametrize("fabric", ["shm", "libfabric", "verbs"])
def test_a_rank_that_closes(start: Callable[..., Members], fabric: str) -> None:
    group = start(2, fabric)
    group.start(members.waits, "barrier", ranks=[0])
    group.start(members.leaves, ranks=[1])
    assert "rank 1 closed the communicator" in group.answers([0])[0]
    group.start(members.sums, ranks=[1])
    group.answers([1])
    assert "the communicator is closed" in group.answers([1])[0]


@pytest.mark.parametrize("what", [members.closes_during_a_request, members.drops_a_request])
def test_a_request_of_a_communicator_that_is_closed(
    start: Callable[..., Members], what: Callable[..., None]
) -> None:
    """The other rank only splits, so the request cannot end by itself."""
    group = start(2)
    group.start(what, ranks=[0])
    group.start(members.only_splits, ranks=[1])
    assert group.answers() == [None, None]


@pytest.mark.parametrize("fabric", ["shm", "libfabric"])
@pytest.mark.parametrize("call", ["barrier", "request", "recv"])
def test_timeouts(start: Callable[..., Members], fabric: str, call: str) -> None:
    group = start(2, fabric)
    group.start(members.waits, call, 0.2, ranks=[0])
    assert group.answers([0])[0].startswith("FabricTimeoutError")
    if call != "recv":  # of which the other rank hears
        group.start(members.waits, "barrier", ranks=[1])
        group.answers([1])
        group.start(members.waits, "barrier", ranks=[1])
        assert "rank 0 is gone" in group.answers([1])[0]


@pytest.mark.parametrize("call", ["barrier", "all_reduce", "request", "recv", "send"])
def test_ctrl_c_ends_a_call(start: Callable[..., Members], call: str) -> None:
    group = start(2)
    group.start(members.waits, call, ranks=[0])
    time.sleep(0.5)
    group.kill(0, signal.SIGINT)
    assert group.answers([0])[0].startswith("KeyboardInterrupt")


@pytest.mark.parametrize("fabric", ["shm", "libfabric"])
def test_a_waiting_rank_uses_no_processor(start: Callable[..., Members], fabric: str) -> None:
    group = start(2, fabric)
    group.start(members.cpu_seconds, ranks=[0])
    time.sleep(2)
    group.start(members.cpu_seconds, ranks=[1])
    assert group.answers([0])[0] < 0.5


@pytest.mark.parametrize("fabric", ["shm", "libfabric", "verbs"])
def test_ranks_that_leave_at_once(start: Callable[..., Members], fabric: str) -> None:
    group = start(3, fabric)
    group.run(members.sums_and_leaves)  # the last step of a rank arrives before its end


DIFFERS = """
import os
from rdma_transport.collectives import Communicator, rendezvous
if os.environ["RANK"] == "1":
    rendezvous.PROTOCOL = "another"
try:
    Communicator.connect()
except ConnectionError as error:
    print(error)
"""


def test_ranks_whose_collectives_differ() -> None:
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DIFFERS],
            env=os.environ | place | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    for rank in ranks:
        said, _ = rank.communicate(timeout=patient(60))
        assert "rank 1 has rdma_transport" in said
        assert "their collectives differ. Install the same build on all hosts" in said


FORKS = """
import os, sys
import numpy as np
from rdma_transport.collectives import Communicator
from rdma_transport.fabric import FabricStateError
world = Communicator.connect()
kept = world.empty(10)
child = os.fork()
if child == 0:
    try:
        world.barrier()
    except FabricStateError as error:
        assert "forked" in str(error)
        Communicator.connect().barrier()
        sys.exit(0)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
world.barrier()
print("left open")
"""


def test_forking_and_leaving_it_open() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKS],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "left open\n"), ran.stderr
