"""`rdma-transport qualify`, as two processes of one host: healthy fabrics, and others."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from bench.support.ports import free_port
from tests.support import fake_verbs, faulty_libfabric
from tests.support.command import NO_LIBRARIES, run
from tests.support.deadlines import patient
from tests.support.qualifying import FEW, ended, qualified, start

pytestmark = pytest.mark.timeout(150)
SKIPPED = {"reference", "link", "training"}


def statuses(claims: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: claim["status"] for name, claim in claims.items()}


def test_shared_memory_passes() -> None:
    code, claims, document = qualified("--no-training", settings=NO_LIBRARIES)
    assert code == 0, claims
    assert {name for name, status in statuses(claims).items() if status == "SKIP"} == SKIPPED
    assert claims["route"]["found"] == "shm, same host"
    assert document["figures"]["order"]["notes"] > 1000
    assert document["figures"]["order"]["early"] == 0
    assert len(document["hosts"]) == 2


def test_verbs_and_libfabric_pass() -> None:
    for settings in (fake_verbs.environment(), faulty_libfabric.environment()):
        code, claims, _ = qualified("--no-training", settings=settings)
        assert code == 0, claims
        assert claims["route"]["found"].startswith(settings["RDMA_TRANSPORT_FABRIC"])
        assert claims["killed_peer"]["status"] == claims["stopped_peer"]["status"] == "PASS"


def test_four_hosts_with_a_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    settings = faulty_libfabric.environment(SECRET_FILE=str(secret))
    place = f"127.0.0.1:{free_port()}"
    more = [*FEW, "--nnodes", "4", "--no-training"]
    started = [start(rank, place, *more, settings=settings) for rank in range(4)]
    results = ended(started, 120)
    assert [code for code, _, _ in results] == [0] * 4, results


def test_a_card_whose_notifications_overtake_bytes_fails() -> None:
    fake = fake_verbs.environment(fake="place_late_us=5000;overtaken=4096")
    code, claims, document = qualified("--no-training", settings=fake)
    assert code == 1
    assert claims["order"]["status"] == "FAIL"
    assert "bytes that were written before it; 20 ms later" in claims["order"]["found"]
    assert document["figures"]["order"]["early"] > 0


def test_two_cards_that_are_not_ordered_to_each_other_pass() -> None:
    cards = fake_verbs.environment(fake="devices=fake_0,fake_1;place_late_us=1000000000", PORTS="2")
    code, claims, _ = qualified("--no-training", settings=cards)
    assert "fake_1:1" in claims["route"]["found"]
    assert code == 0, claims


def test_the_table_names_each_claim() -> None:
    place = f"127.0.0.1:{free_port()}"
    more = [*FEW, "--no-training"]
    started = [start(rank, place, *more, settings=NO_LIBRARIES) for rank in range(2)]
    (code, output, errors), (other_code, other_output, _) = ended(started, 80)
    assert (code, other_code, other_output) == (0, 0, ""), errors
    for claim in ("route", "order", "sizes", "speed", "memory", "killed_peer", "training"):
        assert f"│ {claim} " in output
    assert "PASS" in output
    assert "notifications with" in output


def test_a_host_that_does_not_come_is_named() -> None:
    place = f"127.0.0.1:{free_port()}"
    alone = start(0, place, *FEW, "--wait", "1", "--json", settings=NO_LIBRARIES)
    ((code, output, errors),) = ended([alone], 60)
    assert code == 4
    assert "host 1" in errors
    assert '"claims": []' in output


def test_a_host_that_leaves_is_named() -> None:
    place = f"127.0.0.1:{free_port()}"
    more = [*FEW, "--no-training"]
    started = [start(rank, place, *more, settings=NO_LIBRARIES) for rank in range(2)]
    errors = started[0].stderr
    assert errors
    assert any("examining order" in line for line in errors)  # reads until then
    time.sleep(0.1)
    started[1].send_signal(signal.SIGKILL)
    (code, output, _), _ = ended(started, 140)
    assert code == 4, output
    assert "#1" in output


def test_bad_input_is_refused() -> None:
    for words, message in (
        ([], "--node-rank"),
        (["--node-rank", "2", "--master-addr", "localhost"], "the last one is 1"),
        (["--node-rank", "0", "--master-addr", "x", "--largest", "1"], "--largest"),
    ):
        ran: subprocess.CompletedProcess[str] = run("qualify", *words, settings=NO_LIBRARIES)
        assert ran.returncode == 2, ran.stderr
        assert message in ran.stderr


def test_training_has_the_bits_of_grpc() -> None:
    code, claims, document = qualified(settings=NO_LIBRARIES, seconds=patient(140))
    assert code == 0, claims
    assert claims["training"]["status"] == "PASS"
    found = document["figures"]["training"]
    assert found["rdma"]["tensors"] > 0 == found["grpc"]["tensors"]
