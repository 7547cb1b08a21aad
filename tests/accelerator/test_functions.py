"""TensorFlow 2's ways to a cluster with accelerators: as over gRPC, bit for bit."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.accelerators import FALLBACK, AcceleratorCluster, assert_by_fabric

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("accelerator_clients")]

CLIENT = Path(__file__).with_name("client.py")
CHIEF = ("chief", 0)


def answer(kind: str, protocol: str, late_us: int) -> dict[str, Any]:
    """What client.py says, and "kernels": how many ran on the accelerators of each task."""
    jobs = {"ps": 1, "worker": 1, "chief": 1}
    pretend = f"delay_us={late_us if protocol == 'rdma' else 0}"
    with AcceleratorCluster(jobs, protocol, pretend=pretend, without=(CHIEF,)) as cluster:
        result = forked.run(
            [str(CLIENT), kind, protocol, json.dumps(cluster.spec)],
            os.environ | (cluster.environment or {}),
            timeout=40,
        )
        assert result.returncode == 0, result.stderr[-3000:]
        if protocol == "rdma":
            assert_by_fabric(cluster)
        answered: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        counts = {name: task.count() for name, task in cluster.accelerated().items()}
        answered["kernels"] = {name: count["kernels"] for name, count in counts.items()}
        return answered


@pytest.mark.parametrize("kind", ["functions", "operations", "parameter_server"])
def test_a_client_computes_the_same(kind: str) -> None:
    over_grpc, over_rdma = answer(kind, "grpc", 0), answer(kind, "rdma", 3000)
    assert over_grpc["digest"] == over_rdma["digest"]
    assert over_grpc["kernels"] == over_rdma["kernels"]
    assert over_rdma["kernels"]["/job:worker/task:0"] > 0
    if FALLBACK != "allow":
        assert over_rdma["stats"]["fallback_reasons"] == {}
        assert over_rdma["stats"]["errors"] == {}
