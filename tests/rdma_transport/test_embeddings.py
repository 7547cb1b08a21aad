"""Tables of embeddings, against a model in NumPy: real processes."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import embedding_members as members
from tests.support.deadlines import patient
from tests.support.members import Error, Members

pytestmark = [pytest.mark.timeout(patient(90)), pytest.mark.xdist_group("embeddings")]


@pytest.fixture(scope="module", params=["shm 1", "shm 2", "libfabric", "verbs", "mixed"])
def group(request: pytest.FixtureRequest) -> Iterator[Members]:
    fabric, _, size = request.param.partition(" ")
    made = members.members(int(size or 3), fabric)
    yield made
    made.end()


@pytest.fixture
def start() -> Iterator[Callable[..., Members]]:
    started: list[Members] = []

    def one(size: int, fabric: str = "shm") -> Members:
        started.append(members.members(size, fabric))
        return started[-1]

    yield one
    for each in started:
        each.end()


FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=6, suppress_health_check=FIXTURES)
@given(
    st.sampled_from([1, 2, 7, 60]),
    st.sampled_from([1, 2, 5, 16, 33]),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(list(members.OPTIMIZERS)),
    st.integers(0, 99),
)
def test_it_follows_the_model(
    group: Members, rows: int, dim: int, dtype: str, optimizer: str, seed: int
) -> None:
    results = group.run(members.follows_the_model, rows, dim, dtype, optimizer, seed, 4)
    assert len(set(results)) == 1


@pytest.mark.parametrize("dim", [4, 300])
def test_a_row_that_is_being_stored_is_never_read_by_halves(group: Members, dim: int) -> None:
    assert all(group.run(members.rows_are_whole, dim, 0.5))


def test_what_is_refused(group: Members) -> None:
    group.run(members.refusals)


def test_initial_rows_do_not_depend_on_the_number_of_ranks(
    start: Callable[..., Members],
) -> None:
    found = [start(size).run(members.initial_rows)[0] for size in (1, 3)]
    assert found[0] == found[1]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_another_number_of_owners_restores_it(
    start: Callable[..., Members], tmp_path: Path, optimizer: str
) -> None:
    saved = start(3).run(members.saves, tmp_path / "table", optimizer)
    restored = start(2).run(members.restores, tmp_path / "table", optimizer)
    assert len({*saved, *restored}) == 1


@pytest.mark.parametrize("fabric", ["shm", "libfabric", "verbs"])
@pytest.mark.parametrize("call", [members.looks_up_forever, members.applies_forever])
def test_an_owner_that_is_killed_is_named(
    start: Callable[..., Members], fabric: str, call: Callable[..., None]
) -> None:
    group = start(2, fabric)
    group.run(members.connects)
    group.start(call)
    time.sleep(0.5)
    group.kill(1)
    answer = group.answers([0])[0]
    assert isinstance(answer, Error)
    assert "FabricConnectionError" in answer
    assert "'mortal'" in answer
    assert "rank 1" in answer
