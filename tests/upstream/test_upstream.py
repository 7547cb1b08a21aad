"""No test of TensorFlow's own fails over rdma that passes over gRPC."""

import os
from pathlib import Path

import pytest

from tests.upstream.__main__ import FILES, PROTOCOLS
from tests.upstream.runner import run_file

TESTS = Path(os.environ.get("TENSORFLOW_TESTS", ""))
FOUND = [file for file in FILES if "TENSORFLOW_TESTS" in os.environ and (TESTS / file).is_file()]

pytestmark = pytest.mark.skipif(
    not FOUND, reason="TENSORFLOW_TESTS names no checkout's tensorflow/python"
)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("file", FOUND)
def test_what_passes_over_grpc_passes_over_rdma(file: str, tmp_path: Path) -> None:
    over = {
        protocol: run_file(TESTS / file, protocol, 120, tmp_path / protocol)
        for protocol in PROTOCOLS
    }
    tests = over["grpc"].outcomes | over["rdma"].outcomes
    assert any(over["rdma"].outcomes[test] == "OK" for test in tests)
    alone = {test: over["rdma"].failure(test) for test in tests if not over["grpc"].failure(test)}
    assert not any(alone.values()), alone
