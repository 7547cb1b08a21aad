"""Tables of embeddings whose owners are on two hosts, two on each."""

import time
from collections.abc import Iterator

import pytest

from tests.support import embedding_members as members
from tests.support.deadlines import eventually
from tests.support.members import Error, Members
from tests.support.namespaces import COMMAND_SECONDS, Hosts

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def ranks(hosts: Hosts) -> Iterator[Members]:
    """Ranks 0 and 2 are on the first host, 1 and 3 on the second."""
    made = members.members(4, hosts=hosts)
    yield made
    made.end()


def test_owners_on_two_hosts(ranks: Members) -> None:
    for optimizer in ("adagrad", "adam"):
        results = ranks.run(members.follows_the_model, 60, 5, "float32", optimizer, 3, 4)
        assert len(set(results)) == 1
    assert all(ranks.run(members.rows_are_whole, 300, 0.5))


@pytest.mark.parametrize("ends", ["killed", "link"])
def test_an_owner_that_is_lost_is_named(hosts: Hosts, ranks: Members, ends: str) -> None:
    ranks.run(members.connects)
    ranks.start(members.looks_up_forever)
    time.sleep(1)
    try:
        ranks.kill(3) if ends == "killed" else hosts.second.link(up=False)
        for answer in ranks.answers([0, 2]):
            assert isinstance(answer, Error)
            assert "table 'mortal' cannot be read from its owner, rank" in answer
            assert "is gone" in answer
    finally:
        hosts.second.link(up=True)
        assert all(eventually(host.running, COMMAND_SECONDS) for host in hosts.both)
