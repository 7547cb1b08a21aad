"""The bytes of three ways to exchange a variable, counted by hand and by playing each scheme."""

import dataclasses
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_analyzer import AnalysisError, Plan, advise
from graph_analyzer.advice import (
    Cost,
    parameter_server,
    ring_all_reduce,
    sufficient_factors,
)
from tests.graph_analyzer.test_plan import SAMPLE, WEIGHT, sample

pytestmark = pytest.mark.timeout(60)

small = st.integers(1, 9)


class Network:
    """Counts what enters and leaves each node; what stays in a node is free."""

    def __init__(self) -> None:
        self.ports: Counter[str] = Counter()
        self.total = 0

    def send(self, source: str, destination: str, size: int) -> None:
        if source != destination:
            self.ports[source] += size
            self.ports[destination] += size
            self.total += size

    def cost(self, scheme: str) -> Cost:
        return Cost(scheme, max(self.ports.values(), default=0), self.total)


@given(small, small, small, st.booleans())
def test_parameter_server_is_what_playing_it_counts(
    unit: int, workers: int, servers: int, colocated: bool
) -> None:
    size = unit * servers  # equal shards of `unit` bytes
    network = Network()
    for worker in range(workers):
        for server in range(servers):
            home = f"node{server}" if colocated else f"server{server}"
            network.send(home, f"node{worker}", unit)
            network.send(f"node{worker}", home, unit)
    assert parameter_server(size, workers, servers, colocated) == network.cost("parameter server")


@given(small, small)
def test_ring_is_what_playing_it_counts(unit: int, workers: int) -> None:
    size = unit * workers
    network = Network()
    for _ in range(2 * (workers - 1)):  # reduce-scatter, then all-gather
        for worker in range(workers):
            network.send(f"{worker}", f"{(worker + 1) % workers}", unit)
    assert ring_all_reduce(size, workers) == network.cost("ring all-reduce")


@given(small, small, small, small)
def test_factors_are_what_playing_them_counts(rows: int, m: int, n: int, workers: int) -> None:
    network = Network()
    for source in range(workers):
        for destination in range(workers):
            network.send(f"{source}", f"{destination}", 4 * (rows * m + rows * n))
    assert sufficient_factors(rows, m, n, 4, workers) == network.cost("sufficient factors")


def test_advice_for_a_plan_by_hand() -> None:
    found = advise(sample())
    assert (found.workers, found.servers) == (2, 1)
    assert [one.variable.name for one in found.variables] == ["w0", "b0"]
    weight, bias = found.variables
    # one server: sends to and receives from two workers; all links carry the same
    assert weight.costs[0] == Cost("parameter server", 4 * WEIGHT, 4 * WEIGHT)
    # two workers swap halves twice: 4 * 1/2 in and out, 2 * 1 in all
    assert weight.costs[1] == Cost("ring all-reduce", 2 * WEIGHT, 2 * WEIGHT)
    # K = 64: 64 * (784 + 4096) * 4 = 1249280 bytes each way
    assert weight.costs[2] == Cost("sufficient factors", 2 * 1_249_280, 2 * 1_249_280)
    assert weight.cheapest.scheme == weight.cheapest_in_total.scheme == "sufficient factors"
    assert [cost.scheme for cost in bias.costs] == ["parameter server", "ring all-reduce"]
    assert bias.cheapest.scheme == "ring all-reduce"
    assert found.total(lambda one: one.cheapest).scheme == "mixed"


def test_the_given_batch_and_cluster_replace_the_plans() -> None:
    # K = 10000: 10000 * 4880 * 4 = 195 MB is more than the weight's 12.8 MB
    weight = advise(sample(), batch=10_000, workers=4, servers=4, colocated=True).variables[0]
    assert weight.rows == 10_000
    assert weight.cheapest.scheme == "parameter server"
    # 2S(4+4-2)/4 = 3S on the busiest node for the server, 4S*3/4 = 3S for the ring: a tie
    assert weight.costs[0].busiest == weight.costs[1].busiest == 3 * WEIGHT


def changed(**changes: object) -> Plan:
    plan = sample()
    first = dataclasses.replace(plan.variables[0], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(plan, variables=(first,))


def test_factors_need_a_matmul_with_known_rows() -> None:
    assert advise(changed(matmul_rows=None), batch=8).variables[0].rows is None
    assert advise(changed(matmul_rows=-1)).variables[0].rows is None
    assert advise(changed(matmul_rows=-1), batch=8).variables[0].rows == 8
    assert len(advise(changed(shape=None)).variables[0].costs) == 2
    assert len(advise(changed(shape=(None, 4))).variables[0].costs) == 2


def test_a_step_counter_stays_on_its_server() -> None:
    counter = advise(changed(dtype="int64", shape=(), bytes=8, matmul_rows=None)).variables[0]
    assert [cost.scheme for cost in counter.costs] == ["parameter server"]


def test_what_cannot_be_compared_is_an_error() -> None:
    with pytest.raises(AnalysisError, match="nothing to compare"):
        advise(Plan.from_json(json.dumps(SAMPLE | {"variables": []})))
    with pytest.raises(AnalysisError, match="workers: 0"):
        advise(Plan.from_json(json.dumps(SAMPLE | {"edges": []})))
    with pytest.raises(AnalysisError, match="batch"):
        advise(sample(), batch=0)
