"""Collectives of NumPy arrays, against NumPy: real processes."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdma_transport._collectives import DTYPES
from tests.support import members
from tests.support.deadlines import patient
from tests.support.members import Members


@pytest.fixture(scope="module", params=[1, 2, 3])
def group(request: pytest.FixtureRequest) -> Iterator[Members]:
    made = Members(request.param)
    yield made
    made.end()


@pytest.fixture(scope="module", params=["libfabric", "verbs", "mixed"])
def remote(request: pytest.FixtureRequest) -> Iterator[Members]:
    """Ranks that do not all share memory."""
    made = Members(3, request.param)
    yield made
    made.end()


FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
FEW = settings(max_examples=16, suppress_health_check=FIXTURES)
FEWER = settings(max_examples=8, suppress_health_check=FIXTURES)
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 17, 130]), max_size=3).map(tuple) | st.sampled_from(
    [(8191,), (8193,), (65_537,), (300_000,), (700, 1001)]
)
WHERE = st.sampled_from(["new", "other", "in place", "registered"])


TYPES = st.sampled_from(list(DTYPES))
REDUCTIONS = given(SHAPES, TYPES, st.sampled_from(list(members.OPS)), WHERE, st.integers(0, 99))


def check_reduction(
    group: Members, shape: tuple[int, ...], dtype: str, op: str, where: str, seed: int
) -> None:
    if dtype.startswith("complex") and op in ("min", "max"):
        op = "sum"
    arguments = (shape, dtype, op, where, seed, group.by_host)
    results = group.run(members.reduction, *arguments)
    assert len(set(results)) == 1
    assert group.run(members.reduction, *arguments) == results


@FEW
@REDUCTIONS
def test_reductions_are_those_of_numpy_with_the_same_bits_on_every_rank(
    group: Members, shape: tuple[int, ...], dtype: str, op: str, where: str, seed: int
) -> None:
    check_reduction(group, shape, dtype, op, where, seed)


@FEWER
@REDUCTIONS
def test_reductions_without_shared_memory(
    remote: Members, shape: tuple[int, ...], dtype: str, op: str, where: str, seed: int
) -> None:
    check_reduction(remote, shape, dtype, op, where, seed)


@FEW
@given(SHAPES, TYPES, st.integers(0, 2), st.integers(0, 99))
def test_what_is_moved_arrives(
    group: Members, shape: tuple[int, ...], dtype: str, root: int, seed: int
) -> None:
    group.run(members.moves, shape, dtype, root, seed)


@FEWER
@given(SHAPES, TYPES, st.integers(0, 2), st.integers(0, 99))
def test_what_is_moved_arrives_without_shared_memory(
    remote: Members, shape: tuple[int, ...], dtype: str, root: int, seed: int
) -> None:
    remote.run(members.moves, shape, dtype, root, seed)


@FEWER
@given(SHAPES, TYPES, st.integers(0, 2), st.integers(0, 99))
def test_rooted_collectives(
    group: Members, shape: tuple[int, ...], dtype: str, root: int, seed: int
) -> None:
    group.run(members.rooted, shape, dtype, root, seed)


@FEWER
@given(SHAPES, TYPES, st.integers(0, 2), st.integers(0, 99))
def test_rooted_collectives_without_shared_memory(
    remote: Members, shape: tuple[int, ...], dtype: str, root: int, seed: int
) -> None:
    remote.run(members.rooted, shape, dtype, root, seed)


def test_rooted_collectives_allocate_nothing(group: Members) -> None:
    assert max(group.run(members.moves_no_more_than_needed)) < 4 << 20


def test_registered_arrays_of_all_ranks_or_of_one(group: Members) -> None:
    for where in ("registered", "registered by rank 0"):
        for dtype in ("float32", "int64"):
            group.run(members.moves, (300_000,), dtype, 0, 3, where)
            group.run(members.moves, (5,), dtype, group.size - 1, 3, where)


def test_everything_else_without_shared_memory(remote: Members) -> None:
    remote.run(members.requests, 7)
    remote.run(members.python_objects)
    remote.run(members.messages)
    remote.run(members.rivals, 20)
    remote.run(members.late_messages)
    remote.run(members.splits)


def test_requests() -> None:
    group = Members(2)
    try:
        for count in (1, 7, 30):
            group.run(members.requests, count)
    finally:
        group.end()


def test_objects(group: Members) -> None:
    if group.size > 1:
        group.run(members.python_objects)


def test_messages(group: Members) -> None:
    for _ in range(3):
        group.run(members.messages)


def test_receives_that_match_the_same_messages(group: Members) -> None:
    group.run(members.rivals, 50)


@pytest.mark.parametrize("what", [members.keeps_what_is_in_use, members.keeps_no_more])
def test_arrays_of_receives_that_are_dropped(group: Members, what: Callable[..., None]) -> None:
    group.run(what)


def test_messages_of_ranks_that_close(group: Members) -> None:
    if group.size > 2:
        group.run(members.late_messages)


def test_splitting(group: Members) -> None:
    for _ in range(3):
        group.run(members.splits)
    assert group.run(members.sums) == [group.size] * group.size


def test_it_imports_no_tensorflow() -> None:
    code = (
        "import sys; from rdma_transport.collectives import Communicator; "
        "import rdma_transport.mpi; w = Communicator.connect(); "
        "assert w.all_reduce([1.0][0] * __import__('numpy').ones(2)).sum() == 2; "
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=patient(60))
