"""Simulated steps, against closed forms and laws that hold for any cluster."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_analyzer import AnalysisError, Capacity, capacity
from graph_analyzer.calibration import calibrate
from graph_analyzer.simulation import PARTS, SCHEMES, Behavior, StepTimes, simulate
from tests.graph_analyzer.test_plan import BIAS, WEIGHT, sample

pytestmark = pytest.mark.timeout(60)

MIB = 2**20


def only(times: StepTimes) -> float:
    """The time of each step, of steps that are all equal."""
    assert times.p50 == pytest.approx(times.p99)
    assert times.p50 == pytest.approx(times.mean)
    return times.p50


def steps_of(model: int, workers: int, servers: int, **changes: Any) -> StepTimes:
    bandwidth = changes.pop("bandwidth", 100.0)
    behavior = Behavior(**{"compute": 0.0, "steps": 5} | changes)
    return simulate(capacity(model, workers, servers, bandwidth=bandwidth), behavior)


def test_one_worker_and_one_server_by_hand() -> None:
    times = steps_of(
        1000, 1, 1, compute=3.0, latency=0.5, message_time=0.25, apply=0.125, bandwidth=100.0
    )
    # 10 s of bytes and 0.25 s of a message each way, two latencies, computation, and the update
    assert only(times) == pytest.approx(2 * (10 + 0.25 + 0.5) + 3 + 0.125)
    assert times.bound == "worker port"  # there is no other worker to wait for
    assert times.shares["computation"] == pytest.approx(3 / times.mean)
    assert times.shares["apply"] == pytest.approx(0.125 / times.mean)


def test_n_workers_and_one_server_are_n_times_the_port_time() -> None:
    for workers in (2, 7, 50):
        times = steps_of(1000, workers, 1, compute=3.0, apply=0.5)
        # each worker waits until the server has applied the gradients of all
        assert only(times) == pytest.approx(2 * workers * 10 + 3 + workers * 0.5)
        assert times.bound == "server port"
        assert times.shares["server port"] == pytest.approx(2 * workers * 10 / times.mean)


def test_a_plans_busiest_server_decides() -> None:
    behavior = Behavior(compute=0.0, message_time=5.0, steps=3)
    found = capacity(sample(), 4, 2, bandwidth=100.0)
    assert (found.shards, found.tensors) == ((WEIGHT, BIAS), (1, 1))
    assert only(simulate(found, behavior)) == pytest.approx(2 * 4 * (WEIGHT / 100 + 5))
    alone = capacity(sample(), 1, 1, bandwidth=100.0)
    assert alone.tensors == (2,)
    both = 2 * ((WEIGHT + BIAS) / 100 + 2 * 5)
    assert only(simulate(alone, behavior)) == pytest.approx(both)


def test_a_ring_by_hand() -> None:
    times = steps_of(1000, 5, 1, compute=3.0, latency=0.5, message_time=0.25, scheme="mirrored")
    # 8 rounds of 200 bytes
    assert only(times) == pytest.approx(3 + 8 * (2 + 0.25 + 0.5))
    assert times.shares["server port"] == 0
    assert only(steps_of(1000, 1, 1, compute=3.0, scheme="mirrored")) == 3
    assert steps_of(1000, 1, 1, scheme="mirrored").mean == 0


def test_the_slowest_of_many_workers_decides_a_synchronous_step() -> None:
    def behavior(scheme: str) -> Behavior:
        return Behavior(compute=1.0, sigma=0.5, steps=200, scheme=scheme)

    found = capacity(1, 50, 1, bandwidth=1e9)
    times = {scheme: simulate(found, behavior(scheme)) for scheme in SCHEMES}
    # exp(0.5 z), z the (1/2)^(1/50) quantile of the normal distribution
    assert times["synchronous"].p50 == pytest.approx(3.01, rel=0.05)
    assert times["mirrored"].p50 == pytest.approx(3.01, rel=0.05)
    assert times["synchronous"].bound == "straggler"
    # a worker that waits for nobody has the distribution itself: median 1, 99th percentile 3.2
    assert times["asynchronous"].p50 == pytest.approx(1, rel=0.05)
    assert times["asynchronous"].p99 == pytest.approx(3.2, rel=0.05)
    assert times["asynchronous"].bound == "computation"


clusters = st.builds(
    lambda model, workers, servers, bandwidth: capacity(
        model, workers, servers, bandwidth=bandwidth
    ),
    *(st.integers(1, 2**40), st.integers(1, 20), st.integers(1, 5), st.floats(1, 1e12)),
)
behaviors = st.builds(
    Behavior,
    compute=st.floats(0, 10),
    sigma=st.floats(0, 1),
    latency=st.floats(0, 1),
    message_time=st.floats(0, 1),
    apply=st.floats(0, 1),
    scheme=st.sampled_from(SCHEMES),
    steps=st.integers(1, 20),
    seed=st.integers(0, 9),
)


@given(clusters, behaviors)
@settings(max_examples=50)
def test_no_step_is_shorter_than_its_parts_alone(found: Capacity, behavior: Behavior) -> None:
    times = simulate(found, behavior)
    assert 0 <= times.p50 <= times.p95 <= times.p99
    assert min(times.shares.values()) >= 0
    assert sum(times.shares.values()) == pytest.approx(1 if times.mean else 0)
    assert times.bound in PARTS
    if behavior.scheme != "mirrored":
        alone = 2 * (found.worker_port_bytes / found.bandwidth + behavior.latency)
        assert times.mean >= (alone + behavior.apply) * (1 - 1e-6)


@given(clusters, behaviors)
@settings(max_examples=50)
def test_no_synchronous_step_is_shorter_than_ports_and_computation(
    found: Capacity, behavior: Behavior
) -> None:
    times = simulate(found, replace(behavior, sigma=0.0, message_time=0.0, scheme=SCHEMES[0]))
    apart = found.seconds_synchronous + behavior.compute + 2 * behavior.latency
    assert only(times) == pytest.approx(apart + found.workers * behavior.apply)


@given(st.integers(2, 20), st.floats(0, 3), st.floats(0, 0.5))
@settings(max_examples=30)
def test_asynchronous_steps_are_no_quicker_than_the_servers_port(
    workers: int, compute: float, sigma: float
) -> None:
    times = steps_of(
        1000, workers, 1, compute=compute, sigma=sigma, scheme="asynchronous", steps=50
    )
    # The port finishes a read every 10 s. Steps that are cut off at either end are a few of 50.
    assert times.mean >= workers * 10 * 0.9


def test_thousands_of_tasks_with_large_spread_end() -> None:
    found = capacity(512 * MIB, 3584, 512, bandwidth=12.5e9)
    times = simulate(found, Behavior(compute=0.1, sigma=0.2, steps=3))
    assert times.p50 > found.seconds_overlapped
    assert times.shares["server port"] > times.shares["worker port"] > 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"compute": -1.0}, "compute: -1.0 is not 0 or more seconds"),
        ({"compute": float("nan")}, "compute: nan"),
        ({"latency": float("inf")}, "latency: inf"),
        ({"message_time": -1e-6}, "message time: -1e-06"),
        ({"apply": -0.1}, "apply: -0.1"),
        ({"sigma": -0.1}, "sigma: -0.1 is not between 0 and 4"),
        ({"sigma": float("nan")}, "sigma: nan"),
        ({"scheme": "eager"}, "unknown scheme 'eager'; use one of synchronous, asynchronous"),
        ({"steps": 0}, "steps: 0"),
        ({"steps": 10**9}, "Simulate at most 2500000 steps"),
    ],
)
def test_numbers_that_describe_no_step_are_errors(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AnalysisError) as raised:
        steps_of(1000, 2, 1, **changes)
    assert sentence in str(raised.value)


@given(
    st.tuples(st.integers(1, 30), st.integers(1, 30)).filter(lambda both: both[0] != both[1]),
    st.floats(1.0, 1e6),
    st.floats(0, 1e3),
)
@settings(max_examples=50)
def test_calibration_finds_what_made_the_steps(
    workers: tuple[int, int], bandwidth: float, compute: float
) -> None:
    measured = {
        n: steps_of(1000, n, 1, compute=compute, bandwidth=bandwidth, steps=1).p50 for n in workers
    }
    assert calibrate(1000, 1, measured) == (
        pytest.approx(bandwidth, rel=1e-3),
        pytest.approx(compute, rel=1e-3, abs=1e-2),
    )


def test_a_calibration_is_never_of_less_than_no_computation() -> None:
    bandwidth, compute = calibrate(1000, 1, {2: 1.0, 4: 4.0})
    assert compute == 0
    assert 0 < bandwidth < 2 * 4 * 1000


@pytest.mark.parametrize(
    ("servers", "measured", "sentence"),
    [
        (1, {}, "at least two numbers of workers"),
        (1, {4: 0.1}, "at least two numbers of workers"),
        (8, {2: 0.1, 4: 0.2}, "load the servers' ports differently"),
        (1, {4: 0.1, 8: 0.1}, "do not grow"),
        (1, {4: 0.0, 8: 0.1}, "the measured step of 4 workers is not greater than 0"),
        (1, {0: 0.1, 8: 0.2}, "workers: 0 is not between"),
    ],
)
def test_measurements_that_tell_nothing_are_errors(
    servers: int, measured: dict[int, float], sentence: str
) -> None:
    with pytest.raises(AnalysisError) as raised:
        calibrate(1000, servers, measured)
    assert sentence in str(raised.value)
