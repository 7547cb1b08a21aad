"""TensorFlow's ring of collectives between accelerators: the same bits as over gRPC."""

import signal
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from bench.support.collective_cluster import CollectiveCluster
from tests.plugin.test_collectives import ENDS_WITHIN, STRICT, assert_they_lost_the_last
from tests.support import fake_verbs
from tests.support.accelerators import environment

pytestmark = [pytest.mark.timeout(90), pytest.mark.xdist_group("accelerator_collectives")]

PROGRAM = Path(__file__).with_name("collective_task.py")
OPS = ("all_reduce", "all_gather", "broadcast")
ELEMENTS = (3, 3 * 1001, 3 * 100_001)
MEBIBYTES = 3 << 20


def workers(
    protocol: str,
    settings: dict[str, str] | None = None,
    *,
    late_us: int = 0,
    other_protocol: Collection[int] = (),
) -> CollectiveCluster:
    given = environment(devices=1, pretend=f"delay_us={late_us}") | (settings or {})
    return CollectiveCluster(3, protocol, given, other_protocol, program=PROGRAM)


def digests(cluster: CollectiveCluster) -> list[list[str]]:
    return [
        [answer["digest"] for answer in cluster.run(op, 4 * elements, count=2)]
        for op in OPS
        for elements in ELEMENTS
    ]


@pytest.fixture(scope="module")
def expected() -> list[list[str]]:
    with workers("grpc") as grpc:
        return digests(grpc)


@pytest.mark.parametrize("fabric", ["shm", "verbs"])
def test_the_same_bits_as_over_grpc(expected: list[list[str]], fabric: str) -> None:
    given = fake_verbs.environment() if fabric == "verbs" else {}
    with workers("rdma", STRICT | given, late_us=2000) as rdma:
        assert digests(rdma) == expected
        before = [worker.stats() for worker in rdma.workers]
        rdma.run("all_reduce", MEBIBYTES)
        for worker, old in zip(rdma.workers, before, strict=True):
            new = worker.stats()
            assert new["fallback_reasons"] == new["errors"] == {}
            assert new["sent"]["grpc"]["tensors"] == new["received"]["grpc"]["tensors"] == 0
            # Of three parts, a ring of three sends and receives four on average; each crossed
            # from or to the device once.
            copied = new["device_copied_bytes"] - old["device_copied_bytes"]
            assert abs(copied - 2 * MEBIBYTES * 4 / 3) <= MEBIBYTES * 2 / 3 + 4096
            assert new["copied_bytes"] == old["copied_bytes"]


def test_one_without_the_fabric_among_others(expected: list[list[str]]) -> None:
    with workers("rdma", other_protocol=[1]) as mixed:
        assert digests(mixed) == expected
        assert mixed.workers[0].stats()["sent"]["grpc"]["tensors"] > 0


@pytest.mark.parametrize("fault", ["fail_dtoh", "fail_htod"])
def test_a_copy_that_the_device_refuses_ends_the_collective_of_all(fault: str) -> None:
    with workers("rdma", STRICT) as cluster:
        before = cluster.run("all_reduce", MEBIBYTES)
        cluster.workers[1].say({"set": f"{fault}=1"})
        assert cluster.workers[1].read()
        begun = time.monotonic()
        for answer in cluster.run("all_reduce", MEBIBYTES):
            assert answer["error"] == "InternalError", answer
            assert "refuses the copy" in answer["message"]
        assert time.monotonic() - begun < ENDS_WITHIN
        for worker in cluster.workers:
            worker.say("anew")
        assert [worker.read() for worker in cluster.workers] == [{"done": True}] * 3
        after = cluster.run("all_reduce", MEBIBYTES)
        assert [each["digest"] for each in after] == [each["digest"] for each in before]


def test_the_loss_of_one_ends_the_collective_of_all() -> None:
    with workers("rdma", STRICT) as cluster:
        cluster.run("all_reduce", MEBIBYTES)
        for worker in cluster.workers[:2]:
            worker.say({"op": "all_reduce", "bytes": MEBIBYTES, "count": 1})
        time.sleep(0.5)
        cluster.workers[2].signal(signal.SIGKILL)
        assert_they_lost_the_last(cluster)
