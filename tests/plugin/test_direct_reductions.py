"""Reductions by this transport's own algorithm, between tasks that share memory and others.

Two workers get the same bits as over gRPC, apart from the signs of zeros and NaN. More workers get
what NumPy computes in the order of ranks.
"""

import base64
import os
import signal
import time
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bench.support.collective_cluster import CollectiveCluster
from tests.support.fake_verbs import environment as fake_verbs

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("direct_reductions")]

DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype("float16"),
    "float32": np.dtype("float32"),
    "float64": np.dtype("float64"),
    "int32": np.dtype("int32"),
    "int64": np.dtype("int64"),
}
OPS = [("Add", "Id"), ("Mul", "Id"), ("Max", "Id"), ("Min", "Id"), ("Add", "Div")]
NUMPY = {"Add": np.add, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}
STRICT = {"RDMA_TRANSPORT_FALLBACK": "forbid"}
RING = {"RDMA_TRANSPORT_COLLECTIVES": "ring"}
OURS = "RdmaDirectReduce"
ENDS_WITHIN = 9.0  # seconds: less than PEER_TIMEOUT if it is not set
FABRICS = pytest.mark.parametrize("fabric", ["shm", "verbs"])


def over(fabric: str) -> dict[str, str]:
    """The environment of tasks that share memory, or of tasks as on a host each."""
    return fake_verbs() if fabric == "verbs" else {}


@pytest.fixture(scope="module", params=["shm", "verbs"])
def pair(request: pytest.FixtureRequest) -> Iterator[CollectiveCluster]:
    with CollectiveCluster(2, "rdma", over(request.param) | STRICT) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def grpc_pair() -> Iterator[CollectiveCluster]:
    with CollectiveCluster(2, "grpc") as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["shm", "verbs"])
def trio(request: pytest.FixtureRequest) -> Iterator[CollectiveCluster]:
    with CollectiveCluster(3, "rdma", over(request.param) | STRICT) as cluster:
        yield cluster


def arrays(answers: list[dict[str, Any]], name: str, dtype: str) -> list[np.ndarray]:
    assert not any("error" in answer for answer in answers), answers
    return [np.frombuffer(base64.b64decode(answer[name]), DTYPES[dtype]) for answer in answers]


def bits(array: np.ndarray) -> bytes:
    """Return the bytes of an array in which zeros and NaN have no sign."""
    if np.issubdtype(array.dtype, np.integer):
        return array.tobytes()
    plain = array.copy()
    unsigned = np.isnan(plain) | (plain == 0)
    plain[unsigned] = np.copysign(plain[unsigned], plain.dtype.type(1))
    return plain.tobytes()


def in_rank_order(inputs: list[np.ndarray], merge: str, final: str = "Id") -> np.ndarray:
    """Combine the inputs. Types of 16 bits are rounded once, after a division again."""
    dtype = inputs[0].dtype
    wide = np.dtype("float32") if dtype.itemsize == 2 else dtype
    with np.errstate(all="ignore"):
        merged = reduce(NUMPY[merge], [each.astype(wide) for each in inputs]).astype(dtype)
        return merged if final == "Id" else (merged / dtype.type(len(inputs))).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_get_the_same_bits_as_over_grpc(
    pair: CollectiveCluster, grpc_pair: CollectiveCluster, dtype: str
) -> None:
    for merge, final in OPS:
        for elements in (1, 3, 3 * 1001, 100_003):
            size = elements * DTYPES[dtype].itemsize
            options = {"merge": merge, "final": final, "special": True, "values": True}
            outputs = [
                [bits(each) for each in arrays(answers, "output", dtype)]
                for answers in (
                    pair.run("all_reduce", size, 1, dtype, **options),
                    grpc_pair.run("all_reduce", size, 1, dtype, **options),
                )
            ]
            assert outputs[0] == outputs[1], (merge, final, elements)


@pytest.mark.parametrize("dtype", DTYPES)
def test_three_get_what_the_order_of_ranks_gives(trio: CollectiveCluster, dtype: str) -> None:
    for merge, final in OPS:
        if final == "Div" and np.issubdtype(DTYPES[dtype], np.integer):
            continue  # compared with gRPC above
        for elements in (3, 5, 3 * 1001 + 1, 100_000):
            size = elements * DTYPES[dtype].itemsize
            options = {"merge": merge, "final": final, "values": True}
            answers = trio.run("all_reduce", size, 1, dtype, **options)
            expected = in_rank_order(arrays(answers, "input", dtype), merge, final)
            for output in arrays(answers, "output", dtype):
                assert output.tobytes() == expected.tobytes(), (merge, final, elements)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_scatter(trio: CollectiveCluster, dtype: str) -> None:
    for merge in NUMPY:
        for elements in (3, 3 * 1001, 3 * 33_333):
            size = elements * DTYPES[dtype].itemsize
            answers = trio.run("reduce_scatter", size, 1, dtype, merge=merge, values=True)
            expected = in_rank_order(arrays(answers, "input", dtype), merge)
            for rank, output in enumerate(arrays(answers, "output", dtype)):
                part = expected[rank * elements // 3 : (rank + 1) * elements // 3]
                assert output.tobytes() == 3 * part.tobytes(), (merge, elements)


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter"])
def test_an_empty_tensor(trio: CollectiveCluster, op: str) -> None:
    answers = trio.run(op, 0, 2, values=True)
    assert [answer["output"] for answer in answers] == [""] * 3


def test_the_same_bits_in_every_run(trio: CollectiveCluster) -> None:
    runs = [trio.run("all_reduce", 3 << 18, count=4) for _ in range(3)]
    assert len({answer["digest"] for answers in runs for answer in answers}) == 1


def test_counters_show_the_algorithm_and_no_copy_at_the_sender(trio: CollectiveCluster) -> None:
    trio.run("all_reduce", 3 << 20)
    before = trio.workers[0].stats()
    trio.run("all_reduce", 3 << 20, count=5)
    after = trio.workers[0].stats()
    assert after["collectives"][OURS] - before["collectives"][OURS] == 5
    assert set(after["collectives"]) == {OURS}
    assert set(after["direct_reductions"]) == {after["peers"][0]["transport"]}
    assert after["ring_reasons"] == {}
    assert after["staged_tensors"] == before["staged_tensors"]
    assert after["sent"]["grpc"]["tensors"] == 0
    # It copies the parts that the others reduced, and nothing else. A card reads them in place.
    copies = after["peers"][0]["transport"] == "shm"
    copied = after["copied_bytes"] - before["copied_bytes"]
    assert copied == pytest.approx(5 * (2 << 20) if copies else 0, rel=1e-3)


def test_the_log_and_the_counters_say_what_carries_reductions(tmp_path: Path) -> None:
    """Also where the user hides TensorFlow's lines: another secret makes all go over gRPC."""
    hidden, secrets = {"TF_CPP_MIN_LOG_LEVEL": "2"}, []
    for name in ("one", "other"):
        path = tmp_path / name
        path.write_text(name * 20)
        path.chmod(0o600)
        secrets.append({"RDMA_TRANSPORT_SECRET_FILE": str(path)})
    for transport, second in (("shm", secrets[0]), ("grpc", secrets[1])):
        with CollectiveCluster(2, "rdma", hidden | secrets[0], only_for={1: second}) as cluster:
            cluster.run("all_reduce", 1 << 20, count=3)
            for worker in cluster.workers:
                stats, logged = worker.stats(), worker.logged()
                assert stats["collectives"] == {OURS: 3}
                assert stats["direct_reductions"] == {transport: 3}
                lines = [line for line in logged.splitlines() if "rdma: reductions of" in line]
                assert len(lines) == 1
                assert lines[0].endswith(f": direct (same host) over {transport}")
                assert ("transport=grpc: its secret differs" in logged) == (transport == "grpc")
                assert "rdma: server " in logged


def test_all_use_the_ring_if_one_must(grpc_pair: CollectiveCluster) -> None:
    with CollectiveCluster(2, "rdma", STRICT, only_for={1: RING}) as mixed:
        for size in (12, 1 << 20):
            answers = [cluster.run("all_reduce", size) for cluster in (mixed, grpc_pair)]
            digests = [[answer["digest"] for answer in each] for each in answers]
            assert digests[0] == digests[1]
        for worker in mixed.workers:
            stats = worker.stats()
            assert stats["collectives"] == {"RingReduce": 2}
            reason = "/job:worker/replica:N/task:N has RDMA_TRANSPORT_COLLECTIVES=ring"
            assert stats["ring_reasons"] == {reason: 2}
        # TensorFlow has no other implementation of it.
        answers = mixed.run("reduce_scatter", 8000, values=True)
        expected = in_rank_order(arrays(answers, "input", "float32"), "Add")
        assert arrays(answers, "output", "float32")[0].tobytes() == 2 * expected[:1000].tobytes()


def test_uneven_parts_are_an_error() -> None:
    with CollectiveCluster(2, "rdma", STRICT) as cluster:
        for answer in cluster.run("reduce_scatter", 4 * 2001):
            assert answer["error"] == "InvalidArgumentError"
            assert "2001 rows cannot be divided among 2" in answer["message"]


def test_members_that_call_different_reductions_get_an_error() -> None:
    with CollectiveCluster(2, "rdma", STRICT) as cluster:
        for worker, op in zip(cluster.workers, ("all_reduce", "reduce_scatter"), strict=True):
            worker.say({"op": op, "bytes": 80, "count": 1})
        answers = [worker.read() for worker in cluster.workers]
        assert any("hape mismatch" in answer["message"] for answer in answers), answers


def test_a_worker_without_the_plugin_cannot_reduce_scatter() -> None:
    with CollectiveCluster(2, "rdma", other_protocol=[1]) as mixed:
        answer = mixed.run("reduce_scatter", 80)[0]
        told = {  # by this worker, or by TensorFlow on the other one, whichever comes first
            "UnimplementedError": "/task:1 has no rdma server",
            "InternalError": "did not find collective implementation",
        }
        assert told[answer["error"]] in answer["message"]


# A card would serve the memory of a stopped process, which the fake library does not.
@pytest.mark.parametrize(
    ("number", "fabric", "count"),
    [(signal.SIGKILL, "shm", 600), (signal.SIGSTOP, "shm", 600), (signal.SIGKILL, "verbs", 100)],
)
def test_the_loss_of_one_in_the_middle_ends_all(
    number: signal.Signals, fabric: str, count: int
) -> None:
    environment = over(fabric) | {"RDMA_TRANSPORT_PEER_TIMEOUT": "2s"}
    with CollectiveCluster(3, "rdma", environment) as cluster:
        cluster.run("all_reduce", 3 << 22, count=count)  # it traces
        cluster.begin("all_reduce", 3 << 22, count=count)
        time.sleep(0.2)  # all of them take longer
        cluster.workers[2].signal(number)
        begun = time.monotonic()
        answers = [worker.read() for worker in cluster.workers[:2]]
        assert [answer.get("error") for answer in answers] == ["UnavailableError"] * 2, answers
        assert any("task:2" in answer["message"] for answer in answers)
        assert time.monotonic() - begun < ENDS_WITHIN
        if number == signal.SIGSTOP:
            os.kill(cluster.workers[2].pid, signal.SIGCONT)


@FABRICS
@pytest.mark.parametrize("size", [12, 3 << 20])
def test_one_can_be_cancelled(size: int, fabric: str) -> None:
    """It ends at once. The others wait, as over gRPC, until who is missing aborts."""
    with CollectiveCluster(3, "rdma", over(fabric) | STRICT) as cluster:
        cluster.run("all_reduce", size)
        command = {"op": "all_reduce", "bytes": size, "count": 1}
        cluster.workers[0].say(command | {"cancel_after": 0.5})  # worker 2 never begins
        cluster.workers[1].say(command)
        answer = cluster.workers[0].read()
        assert answer["error"] == "CancelledError", answer
        cluster.workers[2].say("abort")
        assert cluster.workers[2].read() == {"done": True}
        assert "aborted on purpose" in cluster.workers[1].read()["message"]
        for worker in cluster.workers:
            worker.say("anew")
        assert [worker.read() for worker in cluster.workers] == [{"done": True}] * 3
        assert len({answer["digest"] for answer in cluster.run("all_reduce", size)}) == 1
