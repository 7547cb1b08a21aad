"""A rank that fails in the middle of a training ends the job, with its exit code and its errors."""

import pytest

from tests.horovod.jobs import run


@pytest.mark.parametrize(
    ("fails", "code", "how"),
    [
        ("exception", 1, "exited with code 1"),
        ("exit", 3, "exited with code 3"),
        ("signal", 137, "ended by signal 9"),
    ],
)
def test_a_rank_that_fails_ends_the_job(fails: str, code: int, how: str) -> None:
    told = run("fails", ranks=3, code=code, FAILS=fails)
    assert f"error: rank 1 {how}; ended the other ranks\n" in told
    assert fails != "exception" or told.endswith("ValueError: the cause\n")
    # The others were not ended: they found out.
    assert told.count("rank 1 is gone") >= 2
