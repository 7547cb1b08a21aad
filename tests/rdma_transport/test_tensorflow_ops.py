"""Collectives as TensorFlow operations, against NumPy: real processes."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.support.ports import free_port
from rdma_transport import wheels
from rdma_transport.tensorflow import library
from tests.support import tensorflow_members as members
from tests.support.deadlines import patient
from tests.support.members import Error, Members

pytestmark = [pytest.mark.timeout(patient(90)), pytest.mark.xdist_group("tensorflow_ops")]


@pytest.fixture(scope="module", params=[2, 3])
def group(request: pytest.FixtureRequest) -> Iterator[Members]:
    made = members.members(request.param)
    yield made
    made.end()


@pytest.mark.parametrize("mode", members.MODES)
def test_each_kind_with_each_type(group: Members, mode: str) -> None:
    group.run(members.kinds, mode, 7)
    group.run(members.slices, mode)


@pytest.mark.parametrize("mode", members.MODES)
def test_gradients(group: Members, mode: str) -> None:
    group.run(members.gradients, mode)
    group.run(members.no_gradients)


def test_iterations_of_loops_do_not_meet(group: Members) -> None:
    group.run(members.loops, 5)


def test_a_function_that_is_called_twice(group: Members) -> None:
    group.run(members.same_function_twice)


def test_each_rank_starts_in_another_order(group: Members) -> None:
    group.run(members.orders, 8)


DIFFERENCES = ["shape", "type", "operation", "kind", "root", "length of rows", "factor"]


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_ranks_that_differ_all_get_an_error(group: Members, kind: str) -> None:
    group.run(members.differs, kind, group.size - 1)


def test_splits_that_do_not_fit_on_one_rank(group: Members) -> None:
    group.run(members.bad_splits, 0)


def test_a_cancelled_step_does_not_wait(group: Members) -> None:
    group.run(members.times_out_once)


def test_groups_at_once(group: Members) -> None:
    group.run(members.groups)


def test_what_is_refused(group: Members) -> None:
    group.run(members.refusals)


def test_a_forked_child_gets_an_error(group: Members) -> None:
    group.run(members.forked)


def test_large_tensors(group: Members) -> None:
    group.run(members.large, 16 << 20)


@pytest.mark.parametrize("traced", [True, False])
def test_gradients_are_not_copied_for_other_ranks(group: Members, traced: bool) -> None:
    group.run(members.gradients_in_place, traced, 8)


@pytest.mark.parametrize("group", [3], indirect=True)
@pytest.mark.timeout(patient(300))
def test_thousands_of_steps_that_are_late_at_random(group: Members) -> None:
    group.start(members.late_steps, 2000)
    assert group.answers(seconds=240) == [None] * group.size


def test_ranks_with_fewer_steps_join(group: Members) -> None:
    assert set(group.run(members.joins, 3)) == {group.size - 1}


def test_training_is_that_of_one_process(group: Members) -> None:
    weights = group.run(members.trains, 4)
    assert all(each == weights[0] for each in weights)


def test_a_killed_rank_is_named(group: Members) -> None:
    """The last one that uses the group."""
    last = group.size - 1
    group.start(members.waits, ranks=range(last))
    group.kill(last)
    for answer in group.answers(range(last)):
        assert isinstance(answer, Error)
        assert answer.startswith("UnavailableError")
        assert f"rank {last} is gone" in answer


def test_a_stopped_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it keeps the others waiting for, after a time that is given."""
    monkeypatch.setenv("RDMA_TRANSPORT_STALL_TIMEOUT", "1s")
    group = members.members(2)
    try:
        group.run(members.waits)
        group.kill(1, signal.SIGSTOP)
        group.start(members.waits, ranks=[0])
        (answer,) = group.answers([0])
        group.kill(1, signal.SIGCONT)
    finally:
        group.end()
    assert isinstance(answer, Error)
    assert answer.startswith("DeadlineExceededError")
    assert "rank 1 did not answer" in answer
    assert "; pending: '" in answer


SCRIPT = """
import os
import tensorflow as tf
import rdma_transport.tensorflow as rt
world = rt.connect()
assert rt.all_reduce(tf.constant(1)).numpy() == 2
if world.rank == 1:
    raise ValueError("of the script")
if os.environ["WAITS"] == "1":
    rt.all_reduce(tf.constant(1))
"""


@pytest.mark.parametrize("waits", ["1", "0"])
def test_no_rank_hangs_at_exit_after_an_exception_on_another(waits: str) -> None:
    common = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": secrets.token_hex(8),
        "RDMA_TRANSPORT_FABRIC": "shm",
        "WAITS": waits,
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | common | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        lines = [rank.communicate(timeout=patient(60))[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[1].returncode == 1
    assert "ValueError: of the script" in lines[1]
    assert ranks[0].returncode == int(waits)
    if waits == "1":
        assert "rank 1" in lines[0].splitlines()[-1]


def test_a_library_that_does_not_fit_is_no_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    library.operations.cache_clear()
    monkeypatch.setattr(wheels, "refusal", lambda: "built for TensorFlow 2.99")
    with pytest.raises(RuntimeError, match=r"2\.99"):
        library.operations()
