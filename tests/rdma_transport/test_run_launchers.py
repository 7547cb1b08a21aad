"""Elastic jobs of several launchers, all on this host."""

import contextlib
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deadlines import eventually
from tests.support.launchers import Launchers, launchers, member

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Launchers]:
    with launchers(tmp_path) as made:
        yield made


def meeting(jobs: Launchers, node: int) -> tuple[str, ...]:
    return ("--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", jobs.port)


def test_as_many_ranks_join_as_there_may_be(jobs: Launchers) -> None:
    first = jobs.start("-n", "1", "--max", "2", *meeting(jobs, 0), program=member(30, 2))
    first.await_text("begins 0/1 ")
    second = jobs.start("-n", "2", *meeting(jobs, 7), program=member(30, 2))
    assert [first.end(), second.end()] == [0, 0]
    assert re.findall(r"^\[\d\] begins (1/2) after [1-9]", second.printed, re.M) == ["1/2"]
    assert re.findall(r"^\[(\d)\] begins", first.printed, re.M) == ["0", "0"]
    jobs.check_bits()


def test_a_launcher_takes_the_place_of_one_with_its_number(jobs: Launchers) -> None:
    first = jobs.start("-n", "1", "--max", "2", *meeting(jobs, 0), program=member(30, 2))
    second = jobs.start("-n", "1", *meeting(jobs, 1), program=member(10**6, 2))
    second.await_text("begins")
    second.process.send_signal(signal.SIGTERM)
    assert second.end() == 128 + signal.SIGTERM
    third = jobs.start("-n", "1", *meeting(jobs, 1), program=member(30, 2))
    assert [first.end(), third.end()] == [0, 0]
    assert "host 127.0.0.1 is lost, with rank 1; the others go on\n" in first.errors
    jobs.check_bits()


def test_what_ends_the_job_ends_all_launchers(jobs: Launchers) -> None:
    """They say why, and exit with the code of the rank."""
    options = ("--nnodes", "2", "-n", "1", "--restarts", "0", "--min", "2")
    fails = ("sh", "-c", "test $RANK = 0 && exec sleep 100; echo cause >&2; exit 7")
    both = [jobs.start(*options, *meeting(jobs, node), program=fails) for node in (1, 0)]
    assert [each.end() for each in both] == [7, 7]
    why = "rank 1 exited with code 7; 1 rank is left, and --min is 2; ended the other ranks\n"
    assert f"error: {why}" in both[0].errors
    assert f"error: {why}the last lines of its errors:\ncause\n" in both[1].errors


def test_a_signal_to_the_first_launcher_ends_all(jobs: Launchers) -> None:
    program = ("sh", "-c", "echo started; exec sleep 100")
    both = [jobs.start("--nnodes", "2", *meeting(jobs, node), program=program) for node in (0, 1)]
    for each in both:
        each.await_text("started")
    both[0].process.send_signal(signal.SIGINT)
    assert [each.end() for each in both] == [130, 130]
    assert "the launcher that decides which ranks go on was stopped\n" in both[1].errors


def test_a_launcher_without_the_secret_is_refused(jobs: Launchers, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x" * 32)
    secret.chmod(0o600)
    own = {"RDMA_TRANSPORT_SECRET_FILE": str(secret)}
    program = member(30, 2)
    first = jobs.start("--nnodes", "2", "-n", "1", *meeting(jobs, 0), program=program, **own)
    stranger = jobs.start("-n", "1", *meeting(jobs, 1), program=program)
    assert stranger.end() == 2
    assert f"cannot join the elastic job at 127.0.0.1:{jobs.port}: " in stranger.errors
    assert "secret" in stranger.errors
    second = jobs.start("-n", "1", *meeting(jobs, 1), program=program, **own)
    assert [first.end(), second.end()] == [0, 0]
    jobs.check_bits()


def test_a_job_that_nobody_leads(jobs: Launchers) -> None:
    alone = jobs.start("--start-timeout", "1", *meeting(jobs, 1), program=("true",))
    assert alone.end() == 2
    assert f"no launcher of an elastic job listens at 127.0.0.1:{jobs.port} after 1 s" in (
        " ".join(alone.errors.split())
    )


def test_what_the_leader_does_not_understand(jobs: Launchers) -> None:
    first = jobs.start("--nnodes", "2", "-n", "1", *meeting(jobs, 0), program=member(30, 2))
    port, sent = int(jobs.port), (b"", b"{", b"[]\n", b'{"request": "zz"}\n', b"x" * (1 << 17))

    def connects() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    assert eventually(connects)
    for each in sent:
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(each)
    second = jobs.start("-n", "1", *meeting(jobs, 1), program=member(30, 2))
    assert [first.end(), second.end()] == [0, 0]
