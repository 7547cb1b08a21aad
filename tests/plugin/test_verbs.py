"""TensorFlow over the verbs fabric, on a library without a card: the same bits as over gRPC, what a
broken link costs, and what cannot be used says why. tests/verbs has a real kernel's verbs."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from bench.support.cluster import Cluster, NotStartedError
from tests.plugin.test_equality import (  # noqa: F401
    test_a_source_overwritten_right_after_the_send,
    test_a_variable_that_was_assigned_a_received_tensor_is_its_own,
    test_an_empty_tensor_beside_a_reference_variable,
    test_branches_not_taken_are_dead_on_other_tasks,
    test_every_type_and_shape,
    test_several_sessions_and_steps_at_once,
    test_shapes_that_change_between_steps,
    test_slices_of_what_was_received_are_not_written_in_place,
    test_strings_and_lists_cross_as_they_always_did,
    test_tensors_bounced_between_tasks,
    test_while_loop_across_tasks,
)
from tests.support.deadlines import eventually, patient
from tests.support.fake_verbs import environment, tell
from tests.support.graphs import A, B, C, Graph

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("verbs")]
JOBS = {"a": 1, "b": 1, "c": 1}
FAILS_WITHIN = 9.0  # seconds: less than PEER_TIMEOUT
MAX_SLOTS = 6  # of an edge; native/memory/slot_policy.h


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, Cluster]]:
    """As the fixture for all tests, but over verbs; small queues, so that they run full."""
    verbs = environment(QUEUE_DEPTH="16", CHUNK="64KiB", FALLBACK="allow")
    with Cluster(JOBS, "rdma", verbs) as rdma, Cluster(JOBS, "grpc") as grpc:
        yield {"grpc": grpc, "rdma": rdma}


def there_and_back(elements: int = 30_000) -> list[tf.Tensor]:
    with tf.device(A):
        data = tf.random.stateless_uniform([elements], seed=[1, 2])
    with tf.device(B):
        there = tf.negative(data)
    with tf.device(A):
        return [tf.reduce_max(tf.abs(there + data))]


def all_around(elements: int = 30_000) -> list[tf.Tensor]:
    """Each task sends a tensor of its own to each other one."""
    devices = (A, B, C)
    data, differences = {}, []
    for device in devices:
        with tf.device(device):
            data[device] = tf.random.stateless_uniform([elements], seed=[1, 2])
    for device in devices:
        with tf.device(device):
            differences += [
                tf.reduce_max(tf.abs(data[device] - data[other]))
                for other in devices
                if other != device
            ]
    with tf.device(A):
        return [tf.reduce_max(tf.stack(differences))]


def queue_pairs(cluster: Cluster) -> list[int]:
    return [tell(cluster[job, 0].pid, "stats")["qps"] for job in JOBS]


def test_static_edges_are_written_into_their_slots(clusters: dict[str, Cluster]) -> None:
    """Once the pool has enough: it grows when a step begins before the slot of the last is back."""
    task = clusters["rdma"]["a", 0]
    with Graph(clusters["rdma"], there_and_back) as graph:
        for _ in range(MAX_SLOTS + 1):
            before = task.stats()
            for _ in range(10):
                assert graph.run() == [0.0]
            after = task.stats()
            static = after["sent"]["static"]["tensors"] - before["sent"]["static"]["tensors"]
            if static == 10:
                break
    assert static == 10
    for counter in ("copied_bytes", "staged_tensors", "registrations"):
        assert after[counter] == before[counter], counter
    (peer,) = [p for p in after["peers"] if p["task"].startswith("/job:b")]
    assert peer["transport"] == "verbs"
    assert tell(task.pid, "stats")["writes"] > 0


def test_nothing_ran_over(clusters: dict[str, Cluster]) -> None:
    """After all of the above, with queues of 16."""
    for job in JOBS:
        stats = tell(clusters["rdma"][job, 0].pid, "stats")
        assert stats["rnr_naks_sent"] == stats["cq_overruns"] == 0


def test_a_broken_link_fails_the_step_and_is_rebuilt() -> None:
    with Cluster({"a": 1, "b": 1}, "rdma", environment()) as cluster:
        task = cluster["a", 0]
        with Graph(cluster, there_and_back) as graph:
            graph.run()
            tell(task.pid, "break_path 1")
            begun = time.monotonic()
            with pytest.raises(tf.errors.UnavailableError, match="IBV_WC_RETRY_EXC_ERR"):
                run_until_it_fails(graph)
            assert time.monotonic() - begun < FAILS_WITHIN
            # Meanwhile gRPC serves; what was under way by the other direction may fail once more.
            assert eventually(lambda: succeeds(graph), 2 * FAILS_WITHIN)
            assert task.stats()["peers"][0]["transport"] in ("grpc", "connecting")
            tell(task.pid, "break_path 0")

            def by_verbs() -> bool:
                return succeeds(graph) and task.stats()["peers"][0]["transport"] == "verbs"

            assert eventually(by_verbs, 30)


def test_two_tasks_that_send_to_each_other_share_a_connection() -> None:
    """Also when they meet for the first time in the same step, and after one was restarted."""
    # A task that waits for its peer's connection waits an eighth of this.
    fake = environment(CONNECT_TIMEOUT="120s")
    with Cluster(JOBS, "rdma", fake) as cluster:
        for _ in range(2):
            with Graph(cluster, all_around) as graph:
                assert eventually(lambda: succeeds(graph), 30)
                for _ in range(5):
                    assert graph.run() == [0.0]
            assert eventually(lambda: queue_pairs(cluster) == [2, 2, 2], 20), queue_pairs(cluster)
            for job in JOBS:
                peers = cluster[job, 0].stats()["peers"]
                assert [peer["transport"] for peer in peers] == ["verbs", "verbs"]
            cluster.restart("b", 0)


@pytest.mark.parametrize("index", [1, 0], ids=["shares", "notifications"])
def test_a_port_that_goes_down_fails_no_step_and_is_taken_back(index: int) -> None:
    fake = environment(fake="devices=fake_0,fake_1", PORTS="2")
    with (
        Cluster({"a": 1, "b": 1}, "rdma", fake) as cluster,
        Graph(cluster, lambda: there_and_back(1 << 20)) as graph,
    ):
        task = cluster["a", 0]
        assert eventually(lambda: carries(task, graph, 1), seconds=20)
        tell(task.pid, f"fake_{index}.port_state=down")
        for _ in range(10):
            assert graph.run() == [0.0]
        assert eventually(lambda: not port(task, index)["active"], seconds=20)
        assert not carries(task, graph, index)
        tell(task.pid, f"fake_{index}.port_state=active")
        assert eventually(lambda: carries(task, graph, index), seconds=30)
        assert port(task, index)["active"]
        assert not any(peer["last_error"] for peer in task.stats()["peers"])


def test_a_port_that_is_down_at_first_is_used_once_it_is_active() -> None:
    fake = environment(fake="devices=fake_0,fake_1;fake_1.port_state=down", PORTS="2")
    with (
        Cluster({"a": 1, "b": 1}, "rdma", fake) as cluster,
        Graph(cluster, lambda: there_and_back(1 << 20)) as graph,
    ):
        task = cluster["a", 0]
        assert not carries(task, graph, 1)
        for job in ("a", "b"):
            tell(cluster[job, 0].pid, "fake_1.port_state=active")
        assert eventually(lambda: carries(task, graph, 1), seconds=30)


def port(task: Any, index: int) -> dict[str, Any]:
    """The ports are in the order of preference, which changes when one fails."""
    found = [one for one in task.stats()["ports"] if one["name"] == f"fake_{index}:1"]
    return dict(found[0])


def carries(task: Any, graph: Graph, index: int) -> bool:
    """Whether a step writes anything through this port of the task."""
    before = port(task, index)["written_bytes"]
    assert graph.run() == [0.0]
    return bool(port(task, index)["written_bytes"] > before)


def run_until_it_fails(graph: Graph) -> None:
    deadline = time.monotonic() + 2 * FAILS_WITHIN
    while time.monotonic() < deadline:
        graph.run()


def succeeds(graph: Graph) -> bool:
    try:
        return bool(graph.run() == [0.0])
    except tf.errors.UnavailableError:
        return False


def test_where_gRPC_is_forbidden_a_broken_link_is_an_error() -> None:
    with Cluster({"a": 1, "b": 1}, "rdma", environment(FALLBACK="forbid")) as cluster:
        with Graph(cluster, there_and_back) as graph:
            graph.run()
            tell(cluster["b", 0].pid, "break_path 1")
            begun = time.monotonic()
            with pytest.raises(tf.errors.OpError):
                run_until_it_fails(graph)
            assert time.monotonic() - begun < 2 * FAILS_WITHIN
            tell(cluster["b", 0].pid, "break_path 0")
            assert eventually(lambda: succeeds(graph), 30)
            assert cluster["a", 0].stats()["sent"]["grpc"]["tensors"] == 0


def test_a_killed_peer_is_an_error_that_names_it() -> None:
    with Cluster({"a": 1, "b": 1}, "rdma", environment()) as cluster:
        with Graph(cluster, there_and_back) as graph:
            graph.run()
            cluster["b", 0].process.kill()
            begun = time.monotonic()
            with pytest.raises(tf.errors.UnavailableError, match="job:b"):
                graph.run()
            assert time.monotonic() - begun < FAILS_WITHIN


@pytest.mark.parametrize(
    ("fake", "settings", "reason"),
    [
        ("", {"LIBIBVERBS": "libnowhere.so.1"}, "libnowhere.so.1.*install"),
        ("", {"DEVICES": "mlx5_7"}, "mlx5_7.*fake_0"),
        ("port_state=down", {}, "DOWN"),
        ("open_error=EACCES", {}, "/dev/infiniband"),
        ("gids=none", {}, "GID"),
        ("", {"GID_INDEX": "77"}, "GID_INDEX"),
        ("devices=", {}, "no RDMA device"),
    ],
)
def test_what_cannot_be_used_says_why(fake: str, settings: dict[str, str], reason: str) -> None:
    program = "from rdma_transport.fabric import Device; print(Device.open().summary)"
    for fabric in ("verbs", "auto"):
        made = environment(fabric, fake, **settings)
        run = subprocess.run(
            [sys.executable, "-c", program],
            env=made,
            capture_output=True,
            text=True,
            timeout=patient(60),
        )
        assert re.search(reason, run.stdout + run.stderr, re.DOTALL), run
        assert (run.returncode == 0) == (fabric == "auto")


def test_a_server_that_must_have_verbs_says_at_its_start_why_it_has_none() -> None:
    with pytest.raises(NotStartedError, match=r"NotFoundError.*libnowhere"):
        Cluster({"a": 1}, "rdma", environment(LIBIBVERBS="libnowhere.so.1"))
