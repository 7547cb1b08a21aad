"""The benchmarks between two hosts, which make hosts of their own."""

import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.support.namespaces import measured_between
from tests.support.deadlines import patient
from tests.support.namespaces import Hosts

pytestmark = pytest.mark.timeout(120)


def test_rows_of_a_limited_link_and_of_another(hosts: Hosts) -> None:
    assert hosts.both  # there can be hosts
    few = [
        "--sizes",
        "256KiB",
        "--rates",
        "1gbit,none",
        "--workers",
        "3",
        "--ops",
        "all_reduce,all_to_all",
        "--repeat",
        "1",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.two_hosts", *few, "--front-ends", "numpy", "--json"],
        capture_output=True,
        text=True,
        timeout=patient(100),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    results = json.loads(ran.stdout)["results"]
    assert [result["options"]["rate"] for result in results] == ["1gbit", "none"]
    for result in results:
        assert [(row["test"], row["protocol"], row["wrong"]) for row in result["rows"]] == [
            (op, system, 0)
            for system in ("rdma", "no shared memory")
            for op in ("all_reduce", "all_to_all")
        ]


def _algorithm(connection: socket.socket) -> str:
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.rstrip(b"\0").decode()


def _controls(algorithm: str) -> list[str]:
    with measured_between(algorithm) as layout:
        server, worker, other = layout("ps", 0), layout("worker", 0), layout("worker", 1)
        assert worker is other is not server
        # The connection is between this thread, which is on the worker's host, and the server's.
        listener = server.call(lambda: socket.create_server((server.host, 0)))
        with listener, socket.create_connection(listener.getsockname(), 10) as ours:
            theirs, (address, _) = listener.accept()
            with theirs:
                assert address == worker.host
                return [_algorithm(ours), _algorithm(theirs)]


@pytest.mark.parametrize("algorithm", ["reno", "cubic"])
def test_connections_between_hosts_have_the_congestion_control(
    hosts: Hosts, algorithm: str
) -> None:
    assert hosts.both  # there can be hosts
    # A thread of its own, because it moves to a host.
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(_controls, algorithm).result() == [algorithm] * 2


def test_edges_between_hosts(hosts: Hosts) -> None:
    assert hosts.both  # there can be hosts
    few = ["--sizes", "64KiB", "--repeat", "6", "--hops", "4", "--no-references"]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.edges", "--veth", "reno", *few, "--json"],
        capture_output=True,
        text=True,
        timeout=patient(100),
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (result,) = json.loads(ran.stdout)["results"]
    rows = {(row["test"], row["protocol"]): row for row in result["rows"]}
    assert rows["edge", "rdma"]["wrong"] == 0
    assert rows["edge", "rdma"]["sent"]["grpc"]["tensors"] == 0
