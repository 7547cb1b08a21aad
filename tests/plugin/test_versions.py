"""What depends on the version of TensorFlow."""

from collections.abc import Iterator

import pytest
import tensorflow as tf

import rdma_transport
from bench.support.data_service import DataService
from tests.plugin.test_data_service import SKIPS_FAILED_ELEMENTS

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def served() -> Iterator[DataService]:
    made = DataService(1)
    yield made.wait_ready()
    made.end()


@pytest.mark.skipif(not SKIPS_FAILED_ELEMENTS, reason="TensorFlow 2.18 only")
def test_elements_go_by_grpc_where_tensorflow_would_skip_some(served: DataService) -> None:
    service = f"grpc://{served.dispatcher}"
    dataset = tf.data.Dataset.range(7).apply(
        tf.data.experimental.service.distribute(
            "distributed_epoch", service, data_transfer_protocol="rdma"
        )
    )
    assert sorted(int(element) for element in dataset) == list(range(7))
    reasons = rdma_transport.stats()["fallback_reasons"]
    assert any("skips elements that failed" in reason for reason in reasons)
