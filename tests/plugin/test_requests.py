"""Requests to a worker, written by hand, which TensorFlow sends only once in a long training."""

from collections.abc import Iterator

import grpc
import pytest
import tensorflow as tf

from bench.support.cluster import Cluster

pytestmark = pytest.mark.timeout(60)

# Fields of tensorflow.RegisterGraphRequest, RegisterGraphResponse and RunGraphRequest.
GRAPH_DEF, GRAPH_HANDLE = 2, 1
STEP_ID, REQUEST_ID = 2, 11


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    """One field of a protocol buffer, as it is on the wire."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


class Worker:
    """Calls of tensorflow.WorkerService with messages that are bytes."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)

    def call(self, method: str, request: bytes) -> bytes:
        send = self.channel.unary_unary(f"/tensorflow.WorkerService/{method}")
        answer: bytes = send(request, timeout=20)
        return answer

    def run(self, graph_handle: bytes, step: int, request: int) -> None:
        numbers = field(STEP_ID, step) + field(REQUEST_ID, request)
        self.call("RunGraph", field(GRAPH_HANDLE, graph_handle) + numbers)


@pytest.fixture
def worker(rdma: Cluster) -> Iterator[Worker]:
    made = Worker(rdma.spec["a"][0])
    yield made
    made.channel.close()


def register_nothing(worker: Worker) -> bytes:
    """Register a graph that does nothing; return its handle."""
    with tf.Graph().as_default() as graph, tf.device("/job:a/replica:0/task:0/device:CPU:0"):
        tf.no_op()
    request = field(GRAPH_DEF, graph.as_graph_def().SerializeToString())
    answer = worker.call("RegisterGraph", request)
    handle = answer[2:]
    assert answer == field(GRAPH_HANDLE, handle)
    return handle


def test_equal_request_ids_of_different_steps_are_different_requests(worker: Worker) -> None:
    handle = register_nothing(worker)
    worker.run(handle, step=1001, request=5)
    worker.run(handle, step=1002, request=5)
    with pytest.raises(grpc.RpcError, match="received twice"):
        worker.run(handle, step=1002, request=5)


def test_requests_without_an_id_may_come_again(worker: Worker) -> None:
    handle = register_nothing(worker)
    for _ in range(2):
        worker.run(handle, step=1003, request=0)
