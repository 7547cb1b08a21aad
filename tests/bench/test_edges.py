"""`bench.edges`: its chains compute what one process computes, and its tables say what they are."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import numpy as np
import pytest

from bench import edges
from bench.chains import COMPUTED, IDENTITY, Chain, between, fitting
from bench.edges import JOBS, ONE_DEVICE, WAYS, measure_on, measured_steps, started
from bench.support.cluster import Cluster, free_port
from bench.support.floor import SharedFloor, TcpFloor, floor_between
from bench.support.hosts import HERE, Here, across, reached
from bench.support.tcp_floor_task import is_wrong, receive, take_turns
from tests.support.deadlines import patient

pytestmark = pytest.mark.timeout(60)
SIZE, HOPS = 65536, 6


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, Cluster]]:
    with started(WAYS) as made:
        yield made


@pytest.mark.parametrize("kind", [COMPUTED, IDENTITY])
@pytest.mark.parametrize("way", WAYS)
def test_a_chain_computes_what_one_process_computes(
    kind: str, way: str, clusters: dict[str, Cluster]
) -> None:
    with ExitStack() as stack:
        chain = between(stack, clusters[way], JOBS, SIZE, [HOPS], kind)
        assert chain.wrong(HOPS, steps=8) == 0


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
    with ExitStack() as stack, pytest.raises(RuntimeError, match=r"/job:a.*task:0: .*unknown"):
        between(stack, clusters["rdma"], JOBS, SIZE, [HOPS], "unknown")


def test_a_chain_without_edges_between_two_devices_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Chain, "_build", lambda self, tf, source, *_: (source[:1].op, source))
    with ExitStack() as stack, pytest.raises(RuntimeError, match=f"kept 0 of {HOPS} edges"):
        Chain(stack, "", ["/cpu:0", "/cpu:1"], SIZE, [HOPS], COMPUTED)


def test_a_chain_in_one_process_needs_no_edge() -> None:
    with ExitStack() as stack:
        chain = Chain(stack, "", ONE_DEVICE, SIZE, [1, HOPS], COMPUTED)
        assert [chain.wrong(hops) for hops in (1, HOPS)] == [0, 0]


@pytest.mark.parametrize(
    ("size", "hops", "steps"), [(4, 48, 10), (2**16, 48, 10), (2**20, 12, 5), (2**20, 48, 2)]
)
def test_short_steps_are_measured_more_often(size: int, hops: int, steps: int) -> None:
    assert measured_steps(size, hops) == steps


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


def test_large_tensors_have_shorter_chains() -> None:
    assert fitting((2, 12, 48), 2**24) == (2, 12, 48)
    assert fitting((2, 12, 48), 2**27) == (2, 12)
    assert fitting((2, 12, 48), 2**32) == (2,)


def test_both_tables_and_all_figures(
    clusters: dict[str, Cluster],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(edges, "started", lambda *_: nullcontext(clusters))
    file = tmp_path / "edges.json"
    edges.main(sizes="4,64KiB", repeat=6, hops=HOPS, json_file=file)
    text = capsys.readouterr().out
    computed, passed = text.index("computed edges"), text.index("passing a reference")
    assert computed < text.index("floor", computed) < passed
    report = json.loads(file.read_text())
    columns = {*WAYS, "local", "floor"}
    for row, size in zip(report["rows"], (4, SIZE), strict=True):
        assert (row["bytes"], row["hops"], row["wrong"]) == (size, HOPS, 0)
        assert {name for name in columns if row[f"{name}_wrong"] == 0} == columns
        assert {name for name in columns if "median" in row[name]} == columns
        assert all(row[name]["minimum"] > 0 for name in ("local", "floor"))
        assert row["dynamic_sent"]["static"]["tensors"] == row["rdma_sent"]["grpc"]["tensors"] == 0
        assert row["grpc_sent"] is None
    assert report["rows"][1]["rdma_sent"]["static"]["tensors"] > 0
    assert report["tensors_by_mode"]["inline"] > 0
    assert set(report["fixed_cost"]) == {*WAYS, "local"}
    for row in report["references"]:
        assert row["wrong"] == 0
        assert {name for name in (*WAYS, "local") if "median" in row[name]} == {*WAYS, "local"}


def test_static_placement_can_be_off_on_another_host() -> None:
    this, other = (("127.0.0.1", free_port()) for _ in range(2))
    hosts = ",".join(f"{host}:{port}" for host, port in (this, other))
    words = [sys.executable, "-m", "bench", "edges", "--hosts", hosts, "--role", "1"]
    ways = {"dynamic": WAYS["dynamic"]}
    with subprocess.Popen(words, stderr=subprocess.PIPE) as agent:
        with reached([other], 30.0) as others, started(ways, across(this, others)) as clusters:
            assert clusters["dynamic"].spec["b"] != clusters["dynamic"].spec["a"]
            (row,) = measure_on(clusters, [SIZE], 6, JOBS, lambda sizes, _: sizes, HOPS)
        assert agent.wait(patient(20)) == 0
    assert row["wrong"] == 0
    assert row["dynamic_sent"]["static"]["tensors"] == 0
    assert row["dynamic_sent"]["dynamic"]["tensors"] > 0
