"""A step that fails in one task ends in all, with the error that gRPC reports; then steps go on.

ABORT_ROUNDS is how many rounds of each case are played.
"""

import os
import time
import warnings
from collections.abc import Sequence

import pytest

from tests.support.aborts import (
    CASES,
    HANG_SECONDS,
    Case,
    HangError,
    Players,
    Round,
    playing,
    stopping,
)

pytestmark = pytest.mark.timeout(600)
ROUNDS = int(os.environ.get("ABORT_ROUNDS", "0"))
SECONDS = 2.0  # for each case over each protocol, if ABORT_ROUNDS is not set
FEWEST = 4
# Two of 2,500 rounds of a coordinator hung over gRPC, none over rdma: the oracle may try again.
ATTEMPTS = 3
# Which worker's error reaches the others first differs from round to round.
UNSTEADY = ("mirrored",)


def play(players: Players, rounds: int) -> list[Round]:
    """So many, or if it is 0 as many as there is time for."""
    start = time.monotonic()
    played: list[Round] = []
    while len(played) < (rounds or FEWEST) or (not rounds and time.monotonic() - start < SECONDS):
        played.append(players.play(len(played)))
    return played


def anew(protocol: str, name: str, rounds: int) -> list[Round]:
    """With new processes."""
    with playing(CASES[name], protocol) as players:
        return play(players, rounds)


def over_grpc(name: str) -> list[Round]:
    for _ in range(ATTEMPTS - 1):
        try:
            return anew("grpc", name, ROUNDS)
        except HangError as hang:
            warnings.warn(f"{name} over gRPC: {hang}", stacklevel=2)
    return anew("grpc", name, ROUNDS)


def both(name: str) -> tuple[list[Round], list[Round]]:
    """The same rounds over gRPC and over rdma."""
    expected = over_grpc(name)
    return expected, anew("rdma", name, len(expected))


@pytest.mark.parametrize("name", CASES)
def test_it_ends_as_over_grpc(name: str) -> None:
    for number, (grpc, rdma) in enumerate(zip(*both(name), strict=True)):
        where = f"round {number}: {rdma}"
        if name not in UNSTEADY:
            assert rdma.errors == grpc.errors, f"{where}; over gRPC {grpc}"
        assert any(CASES[name].message in answer["message"] for answer in rdma.failed), where
        assert None not in rdma.digests, where
        assert rdma.digests == grpc.digests, where


STOPPED = Case("Sessions", {"a": 1, "b": 1, "c": 1}, {"graph": "crossing", "rounds": 50})
ALLOWED = {"InvalidArgumentError", "UnavailableError", "AbortedError"}


def allowed(played: Round) -> bool:
    """While a task is stopped the error may be its silence, which a good step has as well."""
    return {*played.errors} <= ALLOWED and {
        answer["error"] for answer in played.good
    } <= ALLOWED | {None}


@pytest.mark.parametrize("job", ["a", "b"])
@pytest.mark.parametrize("seconds", [0.3, 2.5])
def test_after_a_task_was_stopped_steps_do_not_wait(job: str, seconds: float) -> None:
    """Shorter than the time after which a silent peer counts as gone, and longer."""
    settings = {"RDMA_TRANSPORT_PEER_TIMEOUT": "1s"}
    with playing(STOPPED, "rdma", environment=settings) as players:
        number = 0

        def rounds(count: int) -> Sequence[Round]:
            nonlocal number
            number += count
            return [players.play(i, HANG_SECONDS) for i in range(number - count, number)]

        rounds(3)
        for _ in range(2):
            with stopping(players, job, seconds):
                during = rounds(2)
            assert [played for played in during if not allowed(played)] == []
            after = rounds(12)
            # A session may first have to notice that its tasks are back.
            assert [played for played in after[:10] if not allowed(played)] == []
            for played in after[10:]:
                assert played.errors == ["InvalidArgumentError"], after
                assert None not in played.digests, after
