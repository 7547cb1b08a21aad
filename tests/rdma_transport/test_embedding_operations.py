"""Tables of embeddings in TensorFlow, against TensorFlow in one process: real processes."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.support import embedding_operations as members
from tests.support.deadlines import patient
from tests.support.members import Error, Members

pytestmark = [pytest.mark.timeout(patient(120)), pytest.mark.xdist_group("embedding_operations")]


@pytest.fixture(scope="module", params=["shm", "libfabric"])
def group(request: pytest.FixtureRequest) -> Iterator[Members]:
    made = members.members(2, request.param)
    yield made
    made.end()


@pytest.mark.parametrize("graph", [False, True])
def test_lookups_are_those_of_a_variable(group: Members, graph: bool) -> None:
    group.run(members.lookups, graph)


def test_what_is_refused(group: Members) -> None:
    group.run(members.refusals)


@pytest.mark.parametrize(
    ("optimizer", "how"), [("adagrad", "tape"), ("adam", "tape"), ("adagrad", "fit")]
)
def test_ranks_train_as_one_process_does(group: Members, optimizer: str, how: str) -> None:
    assert len(set(group.run(members.trains, optimizer, how, 7))) == 1


@pytest.mark.parametrize("call", [members.looks_up_forever, members.trains_forever])
def test_an_owner_that_is_killed_is_named(call: Callable[[], None]) -> None:
    group = members.members(2, "shm")
    try:
        group.run(members.connects)
        group.start(call)
        time.sleep(1)
        group.kill(1)
        answer = group.answers([0])[0]
    finally:
        group.end()
    assert isinstance(answer, Error)
    assert "UnavailableError" in answer
    assert "mortal" in answer
    assert "rank 1" in answer
