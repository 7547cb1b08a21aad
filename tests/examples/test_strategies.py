"""TensorFlow 2's distribution strategies learn the same over rdma as over gRPC, bit for bit."""

import pytest

from tests.support.scripts import MIRRORED, PARAMETER_SERVER, Outcome, bytes_by_fabric, outcome

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("strategies")]

# What a step of these scripts moves between the parameter server and a worker, at least.
STEP_BYTES = 2 * 64 * 256 * 4


def assert_learnt(result: Outcome) -> None:
    for losses in result.losses.values():
        first, last = float.fromhex(losses[0]), float.fromhex(losses[-1])
        assert last < first / 4


def assert_collectives_went_by_the_fabric(result: Outcome) -> None:
    assert set(result.stats) == {"worker:0", "worker:1"}, "both workers have rdma servers"
    assert bytes_by_fabric(result) > len(result.losses["worker:0"]) * STEP_BYTES / 4
    for stats in result.stats.values():
        assert stats["collectives"]["RdmaDirectReduce"] >= len(result.losses["worker:0"])
        assert stats["ring_reasons"] == {}


def test_a_loop_with_a_parameter_server() -> None:
    script = ("parameter_server_loop.py", PARAMETER_SERVER)
    oracle = outcome(*script, "grpc")
    # No tensor leaves the fabric, or the script fails.
    result = outcome(*script, "rdma", settings=(("RDMA_TRANSPORT_FALLBACK", "forbid"),))
    assert result.losses == oracle.losses
    assert_learnt(result)
    assert bytes_by_fabric(result) > 2 * len(result.losses["chief:0"]) * STEP_BYTES


def test_fit_with_a_parameter_server() -> None:
    script = ("parameter_server_fit.py", PARAMETER_SERVER)
    result = outcome(*script, "rdma")
    assert result.losses == outcome(*script, "grpc").losses
    assert_learnt(result)
    # The datasets of the workers are sent to them as strings.
    sent = bytes_by_fabric(result, "a string tensor")
    assert sent > len(result.losses["chief:0"]) * STEP_BYTES


@pytest.mark.parametrize("script", ["mirrored_fit.py", "mirrored_loop.py"])
def test_mirrored_workers(script: str) -> None:
    result = outcome(script, MIRRORED, "rdma")
    assert result.losses == outcome(script, MIRRORED, "grpc").losses
    assert result.losses["worker:0"] == result.losses["worker:1"]
    assert_learnt(result)
    assert_collectives_went_by_the_fabric(result)
