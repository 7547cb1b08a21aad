"""tf.data service over rdma gives the elements that it gives over gRPC, and fails as it does."""

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import data_service_ops

import rdma_transport
from bench.support.data_service import DataService
from bench.support.ports import free_port
from rdma_transport import live
from rdma_transport.observe import recording
from tests.support.deadlines import eventually, patient

SKIPS_FAILED_ELEMENTS = tf.__version__.startswith("2.18.")
pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("data_service")]
if SKIPS_FAILED_ELEMENTS:
    pytestmark.append(pytest.mark.skip(reason="tf.data service over rdma needs TensorFlow 2.19"))
service = tf.data.experimental.service


@pytest.fixture(scope="module")
def served() -> Iterator[DataService]:
    """A dispatcher and two workers, which serve both protocols."""
    made = DataService(2)
    yield made.wait_ready()
    made.end()


def distributed(
    dataset: tf.data.Dataset, served: DataService, protocol: str, **options: Any
) -> tf.data.Dataset:
    # service.distribute(), with one more option: how soon new tasks are seen.
    return dataset.apply(
        data_service_ops._distribute(
            processing_mode=options.pop("sharding", service.ShardingPolicy.DYNAMIC),
            service=f"grpc://{served.dispatcher}",
            data_transfer_protocol=protocol,
            task_refresh_interval_hint_ms=20,
            compression=options.pop("compression", None),
            **options,
        )
    )


def plain(value: Any) -> Any:
    """Everything that an element is: structure, types, shapes and bytes."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    if isinstance(value, tf.RaggedTensor):
        return "ragged", plain(value.flat_values), tuple(plain(s) for s in value.nested_row_splits)
    if isinstance(value, tf.SparseTensor):
        return "sparse", plain(value.indices), plain(value.values), plain(value.dense_shape)
    array = value.numpy()
    content = array.tobytes() if value.dtype != tf.string else np.array(array, object).tolist()
    return value.dtype.name, tuple(value.shape), content


def read(dataset: tf.data.Dataset) -> list[Any]:
    """The elements, sorted, because those of two workers come in any order."""
    return sorted((plain(element) for element in dataset), key=repr)


def received() -> int:
    elements: int = rdma_transport.stats()["data_service"]["received"]["elements"]
    return elements


def test_elements_are_in_a_timeline(served: DataService) -> None:
    large = tf.data.Dataset.range(6).map(lambda i: (tf.fill([50_000], i), i))
    read(distributed(large, served, "rdma"))  # before it
    recordings = [
        live.LiveServer(pid, os.geteuid()).trace(10_000)
        for pid in (served.process.pid, os.getpid())
    ]
    assert len(read(distributed(large, served, "rdma"))) == 6
    kept = {one.server.pid: one.end() for one in recordings}
    trace = recording.build(kept)
    elements = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    full = [event for event in elements if event["args"]["bytes"] == 50_000 * 8 + 8]
    sides = {
        side: [e for e in full if e["cat"] == f"{side},dynamic"] for side in ("send", "receive")
    }
    for side, pid in (("send", served.process.pid), ("receive", os.getpid())):
        assert {(event["pid"], event["name"]) for event in sides[side]} == {(pid, "element")}
        assert len(sides[side]) == 6
    (reader,) = {event["args"]["peer"] for event in sides["send"]}
    (worker,) = {event["args"]["peer"] for event in sides["receive"]}
    assert reader == f"tf.data reader {socket.gethostname()}:{os.getpid()}"
    assert worker == f"tf.data worker {socket.gethostname()}:{served.process.pid}"
    assert {e["args"]["step"] for e in sides["send"]} == {
        e["args"]["step"] for e in sides["receive"]
    }
    arrows = [event for event in trace["traceEvents"] if event["ph"] in "sf"]
    begins = {(event["pid"], event["ts"]) for event in full}
    assert len({e["id"] for e in arrows if (e["pid"], e["ts"]) in begins}) == 6


RANGE = tf.data.Dataset.range(7)
DTYPES = [
    tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.uint8, tf.int16, tf.uint16,
    tf.int32, tf.uint32, tf.int64, tf.uint64, tf.bool, tf.complex64, tf.complex128,
]  # fmt: skip
DATASETS = {
    "every dense type, in a structure": RANGE.map(
        lambda i: {t.name: (tf.cast(tf.fill([1500], i), t), tf.cast(i, t)) for t in DTYPES}
    ),
    "strings": RANGE.map(
        lambda i: (tf.strings.as_string(i), tf.fill([2, 3], tf.strings.as_string(i * 10**6)), "")
    ),
    "long strings": RANGE.map(lambda i: tf.strings.reduce_join(tf.fill([40000], "0123456789"))),
    "ragged": RANGE.map(lambda i: tf.RaggedTensor.from_row_lengths(tf.range(2 * i), [i, 0, i])),
    "ragged strings": RANGE.map(lambda i: tf.strings.split(tf.fill([3000], "a bc def"))),
    "sparse": RANGE.map(
        lambda i: tf.SparseTensor([[i, 0], [i, i + 1]], tf.stack([i, i]), [10, 10])
    ),
    "empty tensors": RANGE.map(lambda i: (tf.zeros([0, 3]), tf.zeros([i, 0, 2], tf.int64))),
    "no elements": tf.data.Dataset.range(0),
    "shapes that change": RANGE.map(lambda i: (tf.fill([i, 3000 + i], i), tf.fill([7 * i], i))),
    "batches": RANGE.map(lambda i: (tf.fill([1000], i), tf.strings.as_string(i))).batch(3),
    # More than can land at once.
    "a thousand tensors": tf.data.Dataset.range(1).map(
        lambda i: tuple(tf.unstack(tf.fill([1030, 600], i)))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DATASETS)
def test_elements_are_those_of_grpc(served: DataService, name: str) -> None:
    # Each worker gives all elements. gRPC carries ragged ones only in compressed form.
    off = service.ShardingPolicy.OFF
    over_grpc = read(distributed(DATASETS[name], served, "grpc", sharding=off, compression="AUTO"))
    before = received()
    over_rdma = read(distributed(DATASETS[name], served, "rdma", sharding=off))
    assert over_rdma == over_grpc
    assert over_rdma == sorted(2 * read(DATASETS[name]), key=repr)
    assert received() - before >= len(over_rdma)


def test_elements_of_64_mib_land_without_a_copy_in_between(served: DataService) -> None:
    shape = [64, 2**20]
    dataset = tf.data.Dataset.range(3).map(lambda i: tf.fill(shape, tf.cast(i + 1, tf.uint8)))
    before = served.stats()["data_service"]["sent"]["bytes"]
    sums = sorted(
        int(tf.reduce_sum(tf.cast(e[::64, ::64], tf.int64)))
        for e in distributed(dataset, served, "rdma")
    )
    assert sums == [2**14 * n for n in (1, 2, 3)]
    stats = served.stats()
    assert stats["data_service"]["sent"]["bytes"] - before == 3 * 2**26
    assert stats["copied_bytes"] == 0


def test_what_was_read_may_be_written_in_place(served: DataService) -> None:
    """Kernels take the memory of their inputs: slices of it, too."""
    dataset = RANGE.map(lambda i: tf.fill([4, 5000], i)).batch(2)
    twice = distributed(dataset, served, "rdma").unbatch().map(lambda x: (x + 1) * 2)
    values = sorted(int(x[0, 0]) for x in twice)
    assert values == [2 * (i + 1) for i in range(7)]


def test_compressed_elements(served: DataService) -> None:
    dataset = RANGE.map(lambda i: (tf.fill([20000], i), tf.strings.as_string(i)))
    before = received()
    for compression in ("AUTO", "SNAPPY"):
        over_rdma = read(distributed(dataset, served, "rdma", compression=compression))
        assert over_rdma == read(dataset)
    assert received() >= before + 14


def test_several_readers_share_a_job(served: DataService) -> None:
    dataset = tf.data.Dataset.range(300).map(lambda i: tf.fill([3000], i))
    readers = [iter(distributed(dataset, served, "rdma", job_name="shared")) for _ in range(3)]
    values: list[int] = []
    open_readers = list(readers)
    while open_readers:
        for reader in list(open_readers):
            element = next(reader, None)
            if element is None:
                open_readers.remove(reader)
            else:
                values.append(int(element[-1]))
    assert sorted(values) == list(range(300))


def test_readers_in_rounds(served: DataService) -> None:
    """Coordinated reads: requests that wait for each other, and may be told to skip."""
    dataset = RANGE.repeat().map(lambda i: tf.fill([2000], i))
    off = service.ShardingPolicy.OFF
    readers = [
        iter(
            distributed(
                dataset, served, "rdma", sharding=off, job_name="rounds",
                consumer_index=index, num_consumers=2,
            )
        )
        for index in range(2)
    ]  # fmt: skip
    with ThreadPoolExecutor() as pool:
        rounds = [tuple(int(e[0]) for e in pool.map(next, readers)) for _ in range(6)]
    assert all(b == (a + 1) % 7 for a, b in rounds), rounds


def test_an_error_of_the_dataset_is_the_readers_error(served: DataService) -> None:
    def fails(i: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_less(i, tf.constant(3, tf.int64), "no")]):
            return tf.identity(i)

    for protocol in ("grpc", "rdma"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="no"):
            list(distributed(RANGE.map(fails), served, protocol))


def test_an_error_of_one_element_is_the_readers_error(served: DataService) -> None:
    """Its successors are sound: whoever asks again gets them, and never hears of the error."""

    def fails(i: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(1 / tf.cast(i - 3, tf.float32), "the fourth")

    for protocol in ("grpc", "rdma"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="the fourth"):
            list(distributed(RANGE.map(fails), served, protocol))


def test_a_reader_that_stops_early_ends_at_once(served: DataService) -> None:
    endless = RANGE.repeat().map(lambda i: tf.fill([100000], i))
    before = time.monotonic()
    for _ in range(5):
        reader = iter(distributed(endless, served, "rdma"))
        next(reader)
        del reader
    assert time.monotonic() - before < patient(20)


def test_without_a_fabric_grpc_serves_and_says_so() -> None:
    worker = DataService(1, environment={"RDMA_TRANSPORT_FABRIC": "grpc"}).wait_ready()
    try:
        before = received()
        assert read(distributed(RANGE, worker, "rdma")) == read(RANGE)
        assert received() == before
        reasons = rdma_transport.stats()["fallback_reasons"]
        assert any("RDMA_TRANSPORT_FABRIC=grpc" in reason for reason in reasons), reasons
        assert "RDMA_TRANSPORT_FABRIC=grpc; its clients use gRPC" in worker.logged()
    finally:
        worker.end()


def test_without_a_fabric_and_with_grpc_forbidden_the_reader_fails() -> None:
    environment = {"RDMA_TRANSPORT_FABRIC": "grpc", "RDMA_TRANSPORT_FALLBACK": "forbid"}
    worker = DataService(1, environment=environment).wait_ready()
    try:
        with pytest.raises(tf.errors.OpError, match="RDMA_TRANSPORT_FABRIC=grpc"):
            read(distributed(RANGE, worker, "rdma"))
    finally:
        worker.end()


@contextmanager
def replaced_worker(elements: int, port: int = 0) -> Iterator[int]:
    """An endless reader's worker was killed and another one came; the reader has read on.

    Yields how many replies came by the fabric before the reader went on.
    """
    with ExitStack() as stack:

        def started(made: DataService) -> DataService:
            stack.callback(made.end)
            return made.wait_ready()

        dispatcher = started(DataService(0))
        first = started(DataService(1, dispatcher.dispatcher, port=port))
        endless = RANGE.repeat().map(lambda i: tf.fill([elements], i))
        off = service.ShardingPolicy.OFF
        reader = iter(distributed(endless, dispatcher, "rdma", sharding=off))
        for _ in range(20):
            next(reader)
        first.kill()
        started(DataService(1, dispatcher.dispatcher, port=port))
        before = received()
        for _ in range(50):
            element = next(reader)
            assert int(tf.reduce_min(element)) == int(tf.reduce_max(element))
        yield before


def test_a_worker_that_comes_back_at_another_transfer_port_is_read_by_grpc() -> None:
    with replaced_worker(2000, free_port()) as before:
        assert received() - before < 50
        reasons = rdma_transport.stats()["fallback_reasons"]
        assert any("data service" in reason for reason in reasons), reasons


def test_a_worker_that_dies_and_comes_back(served: DataService) -> None:
    """The reader sees neither an error nor a hang, and reads by rdma again."""
    with replaced_worker(50000) as before:
        assert eventually(lambda: received() >= before + 20)
        assert rdma_transport.stats()["peers"] == []
