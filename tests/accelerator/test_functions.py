"""TensorFlow 2's ways to a cluster with accelerators: as over gRPC, bit for bit."""

import collections
import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.accelerators import (
    FALLBACK,
    AcceleratorCluster,
    assert_by_fabric,
    exporting,
)
from tests.support.deadlines import patient

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("accelerator_clients")]

CLIENT = Path(__file__).with_name("client.py")
CHIEF = ("chief", 0)


@functools.cache
def over_grpc(kind: str) -> dict[str, Any]:
    return answer(kind, "grpc", 0)


def answer(
    kind: str,
    protocol: str,
    late_us: int,
    settings: dict[str, str] | None = None,
    fault: str | None = None,
) -> dict[str, Any]:
    """What client.py says, and "kernels": how many ran on the accelerators of each job.

    "direct": the bytes that cards read or wrote there. `fault` is one of the server's device.
    """
    workers = 2 if kind == "parameter_server_replicas" else 1
    jobs = {"ps": 1, "worker": workers, "chief": 1}
    pretend = f"delay_us={late_us if protocol == 'rdma' else 0}"
    with AcceleratorCluster(jobs, protocol, settings, pretend=pretend, without=(CHIEF,)) as cluster:
        for task in cluster.accelerated().values():
            if fault is not None and task.job == "ps":
                task.set(fault)
        result = forked.run(
            [str(CLIENT), kind, protocol, json.dumps(cluster.spec)],
            os.environ | (cluster.environment or {}),
            timeout=patient(50),
        )
        assert result.returncode == 0, result.stderr[-3000:]
        if protocol == "rdma" and fault is None:
            assert_by_fabric(cluster)
        answered: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
        kernels = collections.Counter[str]()
        for task in cluster.accelerated().values():
            kernels[task.job] += task.count()["kernels"]
        answered["kernels"] = kernels
        if protocol == "rdma":
            stats = [task.stats() for task in cluster.tasks.values()]
            answered["direct"] = sum(each["device_direct_bytes"] for each in stats)
        return answered


@pytest.mark.parametrize("kind", ["functions", "operations", "parameter_server_replicas"])
@pytest.mark.parametrize("direct", [False, True])
def test_a_client_computes_the_same(kind: str, direct: bool) -> None:
    over_rdma = answer(kind, "rdma", 3000, exporting(GPU_DIRECT="on") if direct else None)
    assert (over_rdma["direct"] > 0) == direct
    assert over_grpc(kind)["digest"] == over_rdma["digest"]
    assert over_grpc(kind)["kernels"] == over_rdma["kernels"]
    assert over_rdma["kernels"]["worker"] > 0
    if FALLBACK != "allow":
        assert over_rdma["stats"]["fallback_reasons"] == {}
        assert over_rdma["stats"]["errors"] == {}


@pytest.mark.parametrize("fallback", ["allow", "forbid"])
def test_a_client_goes_on_after_a_copy_that_failed(fallback: str) -> None:
    settings = {"RDMA_TRANSPORT_FALLBACK": fallback}
    digests = {
        answer("after_a_fault", protocol, 0, settings, fault="fail_dtoh=1")["digest"]
        for protocol in ("grpc", "rdma")
    }
    assert len(digests) == 1
