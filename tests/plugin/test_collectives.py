"""TensorFlow's collectives over the fabric: the same bits as over gRPC, and bounded ends."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from bench.support.collective_cluster import CollectiveCluster
from tests.support.fake_verbs import environment as fake_verbs

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("collectives")]

COMMON = ("float16", "float32", "float64", "int32", "int64")
DTYPES = {  # what TensorFlow's operations take
    "all_reduce": ("bfloat16", *COMMON),
    "all_gather": COMMON,
    "all_to_all": ("bfloat16", *COMMON),
    "broadcast": ("bool", *COMMON),
}
BYTES = {"bool": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
STRICT = {"RDMA_TRANSPORT_FALLBACK": "forbid"}
RING = {"RDMA_TRANSPORT_COLLECTIVES": "ring"}
MODES = pytest.mark.parametrize("mode", ["direct", "ring"])
ENDS_WITHIN = 9.0  # seconds: less than PEER_TIMEOUT if it is not set


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, CollectiveCluster]]:
    with CollectiveCluster(3, "rdma", STRICT | RING) as rdma, CollectiveCluster(3, "grpc") as grpc:
        yield {"grpc": grpc, "rdma": rdma}


def digests(cluster: CollectiveCluster, op: str, size: int, dtype: str, count: int) -> list[str]:
    return [answer["digest"] for answer in cluster.run(op, size, count, dtype)]


@pytest.mark.parametrize(("op", "dtype"), [(op, d) for op, each in DTYPES.items() for d in each])
def test_the_same_bits_as_over_grpc(
    clusters: dict[str, CollectiveCluster], op: str, dtype: str
) -> None:
    """Buffers within a notification, odd ones, and long ones."""
    for elements in (3, 3 * 1001, 3 * 100_001):
        size = elements * BYTES[dtype]
        answers = {
            protocol: digests(cluster, op, size, dtype, count=2)
            for protocol, cluster in clusters.items()
        }
        assert answers["rdma"] == answers["grpc"]
        assert op == "all_to_all" or len(set(answers["rdma"])) == 1


def test_every_byte_went_by_the_fabric(clusters: dict[str, CollectiveCluster]) -> None:
    cluster = clusters["rdma"]
    cluster.run("all_reduce", 3 << 20)
    before = [worker.stats() for worker in cluster.workers]
    cluster.run("all_reduce", 3 << 20)
    after = [worker.stats() for worker in cluster.workers]
    for old, new in zip(before, after, strict=True):
        assert new["sent"]["grpc"]["tensors"] == 0
        # A ring of three sends each of three parts on twice, but for the last of each pass; the
        # parts are a little uneven.
        sent = new["sent"]["dynamic"]["bytes"] - old["sent"]["dynamic"]["bytes"]
        assert abs(sent - (4 << 20)) < 1024
        assert new["staged_tensors"] == old["staged_tensors"]


def assert_as_over_grpc(other: CollectiveCluster, grpc: CollectiveCluster) -> None:
    for op in DTYPES:
        for elements in (3, 3 * 20_001):
            answers = [digests(c, op, 4 * elements, "float32", count=3) for c in (other, grpc)]
            assert answers[0] == answers[1]


def test_one_without_the_fabric_among_others(clusters: dict[str, CollectiveCluster]) -> None:
    with CollectiveCluster(3, "rdma", other_protocol=[1]) as mixed:
        assert_as_over_grpc(mixed, clusters["grpc"])
        stats = mixed.workers[0].stats()
        assert stats["sent"]["grpc"]["tensors"] > 0
        assert stats["sent"]["dynamic"]["tensors"] > 0


def test_over_verbs(clusters: dict[str, CollectiveCluster]) -> None:
    """There the bytes are read into TensorFlow's own buffer."""
    with CollectiveCluster(3, "rdma", fake_verbs() | STRICT | RING) as verbs:
        assert_as_over_grpc(verbs, clusters["grpc"])
        stats = verbs.workers[0].stats()
        assert stats["sent"]["dynamic"]["tensors"] > 0
        assert stats["copied_bytes"] == 0


@MODES
def test_they_begin_anew_after_an_abort(mode: str) -> None:
    """What is left of the aborted ones, on its way or unread, is not for those after."""
    environment = STRICT | {"RDMA_TRANSPORT_COLLECTIVES": mode}
    with CollectiveCluster(3, "rdma", environment) as cluster:
        for size in (12, 4 * 3 * 20_001):
            before = digests(cluster, "all_reduce", size, "float32", count=1)
            for index in (0, 2):  # post what worker 1 never reads
                cluster.workers[index].say({"op": "all_reduce", "bytes": size, "count": 1})
            time.sleep(0.5)
            cluster.workers[1].say("abort")
            assert cluster.workers[1].read() == {"done": True}
            for index in (0, 2):
                assert "aborted on purpose" in cluster.workers[index].read()["message"]
            for worker in cluster.workers:
                worker.say("anew")
            assert [worker.read() for worker in cluster.workers] == [{"done": True}] * 3
            assert digests(cluster, "all_reduce", size, "float32", count=1) == before


def assert_they_lost_the_last(cluster: CollectiveCluster) -> None:
    """Their collective fails within a bound, and names worker 2."""
    begun = time.monotonic()
    for worker in cluster.workers[:2]:
        answer = worker.read()
        assert answer["error"] == "UnavailableError", answer
        assert "task:2" in answer["message"]
    assert time.monotonic() - begun < ENDS_WITHIN


@MODES
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_loss_of_one_ends_the_collective_of_all(number: signal.Signals, mode: str) -> None:
    environment = {"RDMA_TRANSPORT_PEER_TIMEOUT": "2s", "RDMA_TRANSPORT_COLLECTIVES": mode}
    with CollectiveCluster(3, "rdma", environment) as cluster:
        cluster.run("all_reduce", 3 << 20)
        # Worker 2 never begins; workers 0 and 1 wait for it and, around the ring, for each other.
        for worker in cluster.workers[:2]:
            worker.say({"op": "all_reduce", "bytes": 3 << 20, "count": 1, "dtype": "float32"})
        time.sleep(0.5)
        cluster.workers[2].signal(number)
        assert_they_lost_the_last(cluster)
        if number == signal.SIGSTOP:
            os.kill(cluster.workers[2].pid, signal.SIGCONT)
