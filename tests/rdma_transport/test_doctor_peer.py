"""`rdma-transport doctor --peer`: which path tensors would take to a task, asked of that task."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.support.cluster import Task, free_port
from rdma_transport import _native
from rdma_transport.doctor import peer
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN
from rdma_transport.doctor.transfer import CorruptedError
from tests.support import fake_verbs, faulty_libfabric
from tests.support.command import checks, clean_environment, run, words
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(90)


@contextmanager
def task(protocol: str, environment: dict[str, str] | None = None) -> Iterator[tuple[Task, str]]:
    """A server, and where it is."""
    place = f"127.0.0.1:{free_port()}"
    started = Task("ps", 0, protocol, {"ps": [place]}, environment)
    try:
        assert started.wait_ready() == {"ready": True}
        yield started, place
    finally:
        started.end()


def ask(place: str, *more: object, settings: dict[str, str] | None = None) -> tuple[int, dict]:
    ran = run("doctor", "--quick", "--json", "--peer", place, *more, settings=settings)
    assert ran.stderr == ""
    return ran.returncode, checks(ran)


def test_a_task_with_the_plugin_is_reached_by_the_path_that_it_would_take() -> None:
    with task("rdma") as (started, place):
        for _ in range(2):
            code, found = ask(place)
            assert code == 0
            assert found["peer_server"]["found"] == "TensorFlow server of /job:ps/task:0"
            assert found["peer_plugin"]["status"] == PASS
            assert found["peer_transport"]["found"].startswith("shm, same host; round trip")
            assert found["peer_transfer"]["status"] == SKIP
        assert started.stats()["peers"] == []  # a client is no peer, and leaves nothing behind
        assert ask(place, "--fabric", "shm")[0] == 0


def test_a_task_on_verbs() -> None:
    verbs = fake_verbs.environment()
    with task("rdma", verbs) as (_, place):
        code, found = ask(place, "--fabric", "verbs", settings=verbs)
        assert code == 0
        assert found["peer_transport"]["found"].startswith("verbs, fake_0:1 10.0.0.1 -> 10.0.0.1")
        # This side has another kind of address, and says so as a task would.
        other = fake_verbs.environment(fake="gids=rocev2:fd00::1")
        code, found = ask(place, "--fabric", "verbs", settings=other)
        assert code == 3
        assert "one GID is IPv4, the other IPv6" in found["peer_transport"]["found"]


def test_a_task_without_the_plugin_is_reached_by_grpc() -> None:
    with task("grpc") as (_, place):
        code, found = ask(place)
        assert (code, found["peer_transport"]["status"]) == (0, WARN)
        assert "the peer does not run the rdma_transport plugin" in found["peer_transport"]["found"]
        code, found = ask(place, settings={"RDMA_TRANSPORT_FALLBACK": "forbid"})
        assert (code, found["peer_transport"]["status"]) == (1, FAIL)
        assert ask(place, "--fabric", "shm")[0] == 3


def test_a_task_that_was_told_to_use_grpc() -> None:
    with task("rdma", {"RDMA_TRANSPORT_FABRIC": "grpc"}) as (_, place):
        code, found = ask(place)
        assert (code, found["peer_plugin"]["status"]) == (0, PASS)
        assert "it has no fabric: RDMA_TRANSPORT_FABRIC=grpc" in found["peer_transport"]["found"]
        assert "export RDMA_TRANSPORT_FABRIC=auto" in found["peer_transport"]["fix"]["shell"]


def test_nobody_there_is_exit_code_4() -> None:
    code, found = ask(f"127.0.0.1:{free_port()}")
    assert (code, found["peer_address"]["status"]) == (4, FAIL)
    assert "Connection refused" in found["peer_address"]["found"]
    assert ask("no.such.host.invalid:2222")[0] == 4


def test_somebody_who_says_nothing_is_exit_code_4() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, found = ask(f"127.0.0.1:{silent.getsockname()[1]}", "--wait", "1")
    assert (code, found["peer_address"]["status"]) == (4, PASS)
    assert found["peer_server"]["status"] == FAIL


@contextmanager
def listener(
    *more: str, settings: dict[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen]]:
    """Another doctor, and where it listens."""
    process = subprocess.Popen(
        words("doctor", "--listen", "127.0.0.1:0", "--json", "--wait", "30", *more),
        env=clean_environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "rdma-transport doctor --peer 127.0.0.1:" in line
        yield line.rsplit(" ", 1)[1].strip(), process
    finally:
        process.kill()
        process.communicate()


def heard(process: subprocess.Popen) -> tuple[int, dict]:
    out, _ = process.communicate(timeout=patient(20))
    return process.returncode, checks(subprocess.CompletedProcess([], process.returncode, out, ""))


@pytest.mark.parametrize("fabric", ["shm", "verbs", "libfabric"])
def test_two_doctors_move_bytes(fabric: str) -> None:
    double = faulty_libfabric if fabric == "libfabric" else fake_verbs
    settings = double.environment(fabric)
    with listener(settings=settings) as (place, process):
        code, found = ask(place, "--fabric", fabric, settings=settings)
        there, at_peer = heard(process)
    assert (code, there) == (0, 0)
    assert found["peer_transfer"]["found"].startswith("1 MiB written in")
    assert found["peer_transport"]["found"].startswith(fabric)
    assert at_peer["peer_transfer"]["found"].startswith(f"received 1 MiB: {fabric}")


def test_two_doctors_without_a_common_fabric() -> None:
    with listener("--fabric", "shm") as (place, process):
        code, found = ask(place, "--fabric", "verbs", settings=fake_verbs.environment())
        there, _ = heard(process)
    assert (code, there) == (3, 1)
    assert "no fabric reaches it" in found["peer_transport"]["found"]


def test_bytes_that_change_on_their_way_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupted(wire: object, greeting: object) -> None:
        raise CorruptedError("what was read back is not what was written")

    monkeypatch.setattr(peer, "visit", corrupted)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as connection:
            context = peer.Context()
            greeting = {"rdma_transport_doctor": "0.1.0"}
            results = list(peer._with_doctor(context, peer.Wire(connection), greeting))
    assert [(one.name, one.status) for one in results if one.status == FAIL] == [
        ("peer_transfer", FAIL)
    ]


def test_a_client_that_is_no_doctor_is_refused() -> None:
    with listener() as (place, process):
        host, port = peer.place(place)
        with socket.create_connection((host, port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            code, found = heard(process)
    assert (code, found["peer_transfer"]["status"]) == (1, FAIL)
    assert "is not a doctor" in found["peer_transfer"]["found"]


def test_nobody_who_visits_is_exit_code_4() -> None:
    ran = run("doctor", "--listen", "127.0.0.1:0", "--wait", "0.2")
    assert (ran.returncode, ran.stdout) == (4, "")
    assert "no client connected within 0.2 s" in ran.stderr


def test_another_version_of_the_protocol() -> None:
    reply = {"version": _native.PROTOCOL_VERSION + 1, "channel": b"", "refusal": "x"}
    assert peer._plugin(reply).status == FAIL


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.2:2222", ("10.0.0.2", 2222)),
        ("grpc://host:1", ("host", 1)),
        ("[fd00::1]:2222", ("fd00::1", 2222)),
    ],
)
def test_places(text: str, expected: tuple[str, int]) -> None:
    assert peer.place(text) == expected
