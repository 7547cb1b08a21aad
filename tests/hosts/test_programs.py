"""Data service, commands and benchmarks between two hosts."""

import subprocess

import pytest

from bench.support.child import Child
from bench.support.cluster import Task
from tests.support.command import ROOT, checks, clean_environment, run, words
from tests.support.deadlines import patient
from tests.support.namespaces import ADDRESSES, Hosts

pytestmark = pytest.mark.timeout(120)

READER = """
import json, os, sys, tensorflow as tf
import rdma_transport
service = tf.data.experimental.service
dataset = tf.data.Dataset.range(20).map(lambda i: (i, tf.fill([50_000], i)))
read = {}
for protocol in ("grpc", "rdma"):
    there = dataset.apply(service.distribute(
        service.ShardingPolicy.DYNAMIC, "grpc://" + sys.argv[1], compression=None,
        data_transfer_protocol=protocol))
    read[protocol] = sorted((int(i), int(tf.reduce_sum(x))) for i, x in there)
stats = rdma_transport.stats()
print(json.dumps({
    "same": read["grpc"] == read["rdma"], "elements": len(read["rdma"]),
    "received": stats["data_service"]["received"], "reasons": stats["fallback_reasons"],
}), flush=True)
input()
"""

SERVER = """
import json, os, sys, tensorflow as tf
service = tf.data.experimental.service
address = sys.argv[1]
host, _, port = address.rpartition(":")
dispatcher = service.DispatchServer(service.DispatcherConfig(port=int(port)))
worker = service.WorkerServer(service.WorkerConfig(
    address, worker_address=host + ":%port%", data_transfer_protocol="rdma",
    data_transfer_address=host + ":%dts_port%", heartbeat_interval_ms=100))
print(json.dumps({"ready": True}), flush=True)
import rdma_transport
for _ in sys.stdin:
    print(json.dumps(rdma_transport.stats()), flush=True)
"""


def test_elements_of_the_data_service_come_by_the_fabric(hosts: Hosts) -> None:
    address = hosts.second.address()
    server = Child("the data service", ["-c", SERVER, address], place=hosts.second)
    reader: Child | None = None
    try:
        assert server.read(60) == {"ready": True}
        reader = Child("the reader", ["-c", READER, address], place=hosts.first)
        answer = reader.read(60)
        assert answer["same"], answer
        assert answer["elements"] == 20, answer
        assert answer["received"]["elements"] >= 20, answer
        assert answer["received"]["bytes"] >= 20 * 50_000 * 8, answer
        assert answer["reasons"] == {}, answer
    finally:
        server.end()
        if reader is not None:
            reader.end()


def test_the_doctor_finds_the_way_to_a_task_on_the_other_host(hosts: Hosts) -> None:
    address = hosts.second.address()
    task = Task("ps", 0, "rdma", {"ps": [address]}, place=hosts.second)
    try:
        assert task.wait_ready() == {"ready": True}
        ran = hosts.first.call(lambda: run("doctor", "--quick", "--json", "--peer", address))
        found = checks(ran)["peer_transport"]
        assert found["found"].startswith("libfabric"), found
        for host in ADDRESSES:
            assert host in found["found"], found
    finally:
        task.end()


def test_the_fabric_is_measured_between_hosts(hosts: Hosts) -> None:
    places = ",".join(host.address() for host in hosts.both)
    quick = ("--sizes", "64KiB", "--iterations", "20", "--rounds", "1", "--most", "1MiB")
    measured = [
        host.call(
            lambda role=role: subprocess.Popen(
                words("bench", "fabric", "--json", "--hosts", places, "--role", role, *quick),
                cwd=ROOT,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        for role, host in enumerate(hosts.both)
    ]
    try:
        output, _ = measured[0].communicate(timeout=patient(60))
        assert measured[0].returncode == measured[1].wait(patient(30)) == 0, output
    finally:
        for process in measured:
            process.kill()
            process.communicate()
    assert '"transport": "libfabric"' in output
