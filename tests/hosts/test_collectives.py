"""Collectives of NumPy arrays between ranks of two hosts, two on each."""

from collections.abc import Iterator

import pytest

from tests.support import members
from tests.support.deadlines import eventually
from tests.support.members import Error, Members
from tests.support.namespaces import COMMAND_SECONDS, Hosts

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def ranks(hosts: Hosts) -> Iterator[Members]:
    """Ranks 0 and 2 are on the first host, 1 and 3 on the second."""
    made = Members(4, hosts=hosts)
    yield made
    made.end()


def test_ranks_of_two_hosts(ranks: Members) -> None:
    for shape in ((), (7,), (300_000,)):
        for dtype in ("float32", "bfloat16"):
            arguments = (shape, dtype, "sum", "in place", 3, ranks.by_host)
            results = ranks.run(members.reduction, *arguments)
            assert len(set(results)) == 1
        ranks.run(members.moves, shape, "int64", 1, 5)
    ranks.run(members.messages)
    ranks.run(members.splits)
    ranks.run(members.sums_and_leaves)
    assert ranks.run(members.ranks_of_this_host) == [2, 2, 2, 2]


def test_a_killed_rank_is_noticed_on_both_hosts(ranks: Members) -> None:
    ranks.run(members.sums)
    ranks.start(members.waits, "all_reduce", ranks=[0, 1, 2])
    ranks.kill(3)
    for answer in ranks.answers([0, 1, 2]):
        assert isinstance(answer, Error)
        assert "rank 3 is gone" in answer


def test_a_link_that_goes_down_ends_the_calls(hosts: Hosts, ranks: Members) -> None:
    ranks.run(members.sums)
    hosts.second.link(up=False)
    try:
        ranks.start(members.waits, "barrier", ranks=[0, 1, 2])
        for answer in ranks.answers([0, 1, 2], seconds=60):
            assert "is gone" in answer
    finally:
        hosts.second.link(up=True)
        assert all(eventually(host.running, COMMAND_SECONDS) for host in hosts.both)
