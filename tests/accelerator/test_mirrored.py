"""MultiWorkerMirroredStrategy with replicas on accelerators: the same bits as over gRPC."""

from pathlib import Path
from typing import Any

import pytest

from bench.support.collective_cluster import CollectiveCluster
from tests.plugin.test_collectives import STRICT
from tests.support import fake_verbs
from tests.support.accelerators import environment

pytestmark = [pytest.mark.timeout(150), pytest.mark.xdist_group("accelerator_mirrored")]

PROGRAM = Path(__file__).with_name("mirrored_task.py")
WORKERS, ACCELERATORS = 2, 2
COMMANDS = (1, 4, "gather")  # steps, and what else the strategy is asked for


def train(
    protocol: str, settings: dict[str, str], pretend: str
) -> tuple[list[Any], list[dict[str, Any]]]:
    """What the workers answered, the same for each, and what their transports counted."""
    given = environment(ACCELERATORS, pretend) | settings
    with CollectiveCluster(WORKERS, protocol, given, program=PROGRAM) as cluster:

        def ask(command: Any) -> list[Any]:
            for worker in cluster.workers:
                worker.say(command)
            return [worker.read(60) for worker in cluster.workers]

        answers = []
        for command in COMMANDS:
            first, *others = ask(command)
            assert others == [first] * len(others), command
            answers.append(first)
        assert ask("devices") == [["PRETEND"]] * WORKERS
        assert all(counters["kernels"] > 0 for counters in ask("count"))
        return answers, ask("stats")


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return train("grpc", {}, "in_order=1")[0]


@pytest.mark.parametrize("late_us", [0, 2000], ids=["at_once", "late"])
@pytest.mark.parametrize("fabric", ["shm", "verbs"])
def test_replicas_train_the_same(expected: list[Any], fabric: str, late_us: int) -> None:
    given = fake_verbs.environment() if fabric == "verbs" else {}
    answers, stats = train("rdma", STRICT | given, f"delay_us={late_us}")
    assert answers == expected
    for counted in stats:
        assert counted["fallback_reasons"] == counted["errors"] == {}
        assert counted["sent"]["grpc"]["tensors"] == counted["received"]["grpc"]["tensors"] == 0
        assert counted["device_copied_bytes"] > 0
