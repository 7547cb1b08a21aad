"""What N workers and M servers need, against numbers worked out by hand, and laws that hold."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_analyzer import AnalysisError, Capacity, Plan, capacity
from graph_analyzer.capacity import spread_evenly, spread_greedily
from tests.graph_analyzer.test_plan import BIAS, SAMPLE, WEIGHT, sample

pytestmark = pytest.mark.timeout(60)

MIB = 2**20
GBIT = 1e9 / 8


def test_eight_workers_and_two_servers_by_hand() -> None:
    found = capacity(512 * MIB, 8, 2, bandwidth=100 * GBIT, batch=32)
    assert found.shards == (256 * MIB, 256 * MIB)
    assert found.imbalance == 1
    # 256 of parameters, and two slots for each of eight workers' 256 of gradients
    assert found.server_registered == (256 + 2 * 8 * 256) * MIB
    # two slots of parameters, one buffer of gradients
    assert found.worker_registered == (2 * 512 + 512) * MIB
    assert found.total_registered == 2 * (256 + 4096) * MIB + 8 * 1536 * MIB
    assert (found.server_queue_pairs, found.worker_queue_pairs) == (8, 2)
    assert found.total_queue_pairs == 32  # 16 pairs, one channel each, two ends each
    assert found.largest_shard == 256 * MIB  # a link, each way
    assert found.server_port_bytes == 2048 * MIB
    assert found.worker_port_bytes == 512 * MIB
    assert found.total_bytes == 8 * 2 * 512 * MIB
    assert found.busiest_port == "server"
    # 2048 MiB = 2147483648 bytes at 12.5e9 bytes per second
    assert found.seconds_overlapped == pytest.approx(0.17179869184)
    assert found.seconds_synchronous == pytest.approx(0.34359738368)
    assert found.samples_per_second == pytest.approx(8 * 32 / 0.17179869184)


def test_with_more_servers_than_workers_the_workers_port_is_the_limit() -> None:
    found = capacity(1000, 2, 4, bandwidth=100.0)
    assert found.busiest_port == "worker"
    assert found.seconds_overlapped == 10  # 1000 bytes into each worker; a server sends 2 * 250
    assert found.samples_per_second is None


def test_queue_pairs_and_slots_scale_what_they_should() -> None:
    found = capacity(100, 3, 2, bandwidth=1.0, queue_pairs_per_peer=4, slots=5)
    assert (found.server_queue_pairs, found.worker_queue_pairs) == (12, 8)
    assert found.total_queue_pairs == 48
    libfabric = capacity(100, 3, 2, bandwidth=1.0, queue_pairs_per_peer=0)
    assert libfabric.total_queue_pairs == 0
    assert found.server_registered == 50 + 5 * 3 * 50
    assert found.worker_registered == 5 * 100 + 100


def test_a_plans_variables_stay_whole_so_one_server_has_nearly_all() -> None:
    found = capacity(sample(), 2, 2, bandwidth=GBIT)
    assert found.placement == "greedy"
    assert found.shards == (WEIGHT, BIAS)  # the momentum is read by nobody: it does not travel
    assert found.imbalance == pytest.approx(2 * WEIGHT / (WEIGHT + BIAS))


def test_greedy_placement_by_hand() -> None:
    # 7 and 6 open the two; 5 to the 6, 4 to the 7: 11 and 11; 3 to the first
    assert spread_greedily([3, 4, 5, 6, 7], 2) == [[7, 4, 3], [6, 5]]
    assert spread_greedily([5], 3) == [[5], [], []]
    assert spread_evenly(10, 4) == [3, 3, 2, 2]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30), st.integers(1, 9))
def test_placing_loses_no_byte(items: list[int], servers: int) -> None:
    placed = spread_greedily(items, servers)
    assert sorted(item for items in placed for item in items) == sorted(items)
    assert len(placed) == servers
    even = spread_evenly(sum(items), servers)
    assert sum(even) == sum(items)
    assert max(even) - min(even) <= 1


clusters = st.tuples(st.integers(1, 200), st.integers(1, 50))


@given(st.integers(1, 2**40), clusters)
def test_more_workers_cost_more_and_more_servers_or_bandwidth_never(
    model: int, cluster: tuple[int, int]
) -> None:
    n, m = cluster

    def at(workers: int, servers: int, bandwidth: float = 1e9) -> Capacity:
        return capacity(model, workers, servers, bandwidth=bandwidth)

    here = at(n, m)
    assert at(n + 1, m).seconds_overlapped >= here.seconds_overlapped
    assert at(n + 1, m).server_registered > here.server_registered
    assert at(n, m + 1).seconds_overlapped <= here.seconds_overlapped
    assert at(n, m, 2e9).seconds_overlapped < here.seconds_overlapped
    assert capacity(model + 1, n, m, bandwidth=1e9).worker_registered > here.worker_registered


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": 0},
        {"servers": -1},
        {"workers": 2**30},
        {"slots": 0},
        {"queue_pairs_per_peer": -1},
        {"batch": 0},
        {"bandwidth": 0.0},
        {"bandwidth": float("nan")},
        {"bandwidth": float("inf")},
        {"model": 0},
        {"model": -5},
        {"model": Plan.from_json(json.dumps(SAMPLE | {"variables": []}))},
    ],
)
def test_numbers_that_make_no_cluster_are_errors(changes: dict[str, Any]) -> None:
    arguments = {"model": 100, "workers": 2, "servers": 1, "bandwidth": 1e9} | changes
    with pytest.raises(AnalysisError):
        capacity(**arguments)  # type: ignore[arg-type]
