"""`bench.edges`: its chains compute what one process computes, and its tables say what they are."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from bench import references
from bench.chains import COMPUTED, IDENTITY, Chain, between
from bench.edges import PROTOCOLS, computed
from bench.remote_session import SESSION_TASK
from bench.report import Row
from bench.support.cluster import Cluster, free_port
from bench.support.floor import SharedFloor, TcpFloor, floor_between
from bench.support.hosts import HERE, Here, across, reached
from bench.support.tcp_floor_task import is_wrong, receive, take_turns
from bench.where import JOBS, STATIC_OFF, Where
from bench.where import clusters as started
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(60)
SIZE, HOPS = 65536, 6


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, Cluster]]:
    with started(Where(PROTOCOLS), dict.fromkeys(JOBS, 1), {JOBS[0]: SESSION_TASK}) as made:
        yield made


@pytest.mark.parametrize("kind", [COMPUTED, IDENTITY])
@pytest.mark.parametrize("way", PROTOCOLS)
def test_a_chain_computes_what_one_process_computes(
    kind: str, way: str, clusters: dict[str, Cluster]
) -> None:
    with ExitStack() as stack:
        chain = between(stack, clusters[way], SIZE, [HOPS], kind)
        assert chain.wrong(HOPS, 8) == 0


def test_every_wrong_result_of_a_chain_is_counted(
    clusters: dict[str, Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Chain._expected
    # The last element, and no other, is another one.
    monkeypatch.setattr(
        Chain,
        "_expected",
        lambda self, source, hops: expected(self, source, hops) * ([1.0] * (SIZE // 4 - 1) + [2.0]),
    )
    with ExitStack() as stack:
        target = clusters["rdma"].target(JOBS[0])
        devices = [f"/job:{job}/task:0" for job in JOBS]
        chain = Chain(stack, target, devices, SIZE, [HOPS], COMPUTED)
        assert chain.wrong(HOPS, steps=3) == 3


def test_an_error_of_a_chain_is_reported_with_its_task(clusters: dict[str, Cluster]) -> None:
    with ExitStack() as stack, pytest.raises(RuntimeError, match=r"/job:worker.*task:0: .*unknown"):
        between(stack, clusters["rdma"], SIZE, [HOPS], "unknown")


def test_a_chain_without_edges_between_two_devices_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Chain, "_build", lambda self, tf, source, *_: (source[:1].op, source))
    with ExitStack() as stack, pytest.raises(RuntimeError, match=f"kept 0 of {HOPS} edges"):
        Chain(stack, "", ["/cpu:0", "/cpu:1"], SIZE, [HOPS], COMPUTED)


@pytest.mark.parametrize("size", [4, SIZE])
@pytest.mark.parametrize(("second", "kind"), [(HERE, SharedFloor), (Here(), TcpFloor)])
def test_the_floor_computes_what_it_should(size: int, second: Here, kind: type) -> None:
    with ExitStack() as stack:
        floor = floor_between(stack, size, HERE, second)
        assert isinstance(floor, kind)
        assert floor.wrong(HOPS) == 0
        assert min(floor.seconds([HOPS, HOPS])) > 0


def test_a_floor_that_computes_something_else_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        floor = SharedFloor(stack, SIZE)
        seconds = floor.seconds
        monkeypatch.setattr(floor, "seconds", lambda steps: seconds([n + 2 for n in steps]))
        assert floor.wrong(HOPS) == 1


@pytest.mark.parametrize("added", [1, 2**20])
def test_a_floor_over_tcp_sees_what_is_wrong(added: int) -> None:
    here, there = socket.socketpair()
    arrived, tensor, other = (np.zeros(1024, np.float32) for _ in range(3))

    def answer() -> None:
        while receive(there, other):
            there.sendall((other + np.float32(added)).data)

    with there, here:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert take_turns(here, arrived, tensor, 3) > 0
        assert is_wrong(tensor, 3) == (added != 1)
        here.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_rows_of_computed_edges_and_of_references(clusters: dict[str, Cluster]) -> None:
    def track(sizes: list[int], what: str) -> list[int]:
        return sizes

    result = computed(clusters, [4, SIZE], 6, track, HOPS)
    rows = {(row.test, row.protocol, row.bytes): row for row in result.rows}
    ways = {*(("edge", way) for way in PROTOCOLS), ("hop", "local"), ("hop", "floor")}
    costs = {*(("step_cost", way, 4) for way in PROTOCOLS), ("step", "local", 4)}
    assert set(rows) == {(*way, size) for way in ways for size in (4, SIZE)} | costs
    assert {row.wrong for row in rows.values() if not row.test.startswith("step")} == {0}
    assert all(row.times is not None for row in rows.values())
    assert carried(rows["edge", "dynamic", SIZE], "static") == 0
    assert carried(rows["edge", "rdma", SIZE], "grpc") == 0
    assert carried(rows["edge", "rdma", SIZE], "static") > 0
    assert carried(rows["edge", "rdma", 4], "inline") > 0
    assert rows["edge", "grpc", SIZE].sent is None
    passed = references.passed(clusters, [4], 6, track, HOPS)
    assert [(row.protocol, row.wrong) for row in passed.rows] == [
        (way, 0) for way in (*PROTOCOLS, "local")
    ]


def carried(row: Row, mode: str) -> int:
    assert row.sent is not None
    tensors: int = row.sent[mode]["tensors"]
    return tensors


def test_static_placement_can_be_off_on_another_host() -> None:
    this, other = (("127.0.0.1", free_port()) for _ in range(2))
    hosts = ",".join(f"{host}:{port}" for host, port in (this, other))
    words = [sys.executable, "-m", "bench", "edges", "--hosts", hosts, "--role", "1"]
    with subprocess.Popen(words, stderr=subprocess.PIPE) as agent:
        with reached([other], 30.0) as others:
            where = Where(("dynamic",), layout=across(this, others))
            jobs = dict.fromkeys(JOBS, 1)
            with started(where, jobs, {JOBS[0]: SESSION_TASK}) as clusters:
                assert clusters["dynamic"].environment == STATIC_OFF
                assert clusters["dynamic"].spec["ps"] != clusters["dynamic"].spec["worker"]
                row, *_ = computed(clusters, [SIZE], 6, lambda sizes, _: sizes, HOPS).rows
        assert agent.wait(patient(20)) == 0
    assert row.wrong == 0
    assert carried(row, "static") == 0
    assert carried(row, "dynamic") > 0
