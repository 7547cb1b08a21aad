"""Fixtures: clusters that several tests share, because importing TensorFlow takes seconds."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.support.cluster import Cluster


@pytest.fixture(scope="session")
def clusters() -> Iterator[dict[str, Cluster]]:
    """Three tasks a, b, c, once over gRPC and once over rdma."""
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    made = {protocol: Cluster({"a": 1, "b": 1, "c": 1}, protocol) for protocol in ("grpc", "rdma")}
    yield made
    for cluster in made.values():
        cluster.end()


@pytest.fixture(scope="session")
def rdma(clusters: dict[str, Cluster]) -> Cluster:
    return clusters["rdma"]
