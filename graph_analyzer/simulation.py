"""Simulates the steps of N workers and M parameter servers, or of N mirrored workers.

A worker's step: it reads all parameters, computes, and returns a gradient for each; then servers
apply it. ``capacity`` gives the sizes. With B_m and n_m the bytes and tensors of server m, C the
bandwidth and o ``message_time``, server m's port works B_m/C + n_m o on the transfer of one worker,
and the worker's own port the sum of these. Both directions of a port are independent.

* Computation has a lognormal distribution with the median ``compute`` and the parameter ``sigma``.
* A worker's transfers from all servers are one, which proceeds at the pace of the slowest, so a
  cluster of thousands takes seconds to simulate. The busiest server's port decides in any case.
* Transfers share a port equally (processor sharing), because that is what channels do: each
  has a queue of its own, from which a port takes chunks in turn. A port that finishes one
  transfer after the other (FIFO) would let the first workers compute earlier.
* ``latency`` is the time from the last byte's departure to its arrival, once per transfer: the
  messages of one follow each other without waiting.
* A server applies the gradients of one worker after the other, each for ``apply``.

Schemes:

* ``synchronous``: a step begins when all gradients of the last one are applied.
* ``asynchronous``: each worker takes its next step at once. The first fifth is not counted.
* ``mirrored``: no servers. Workers sum gradients in a ring of 2 (N-1) rounds; in each a worker
  sends P/N bytes in one message. Round r of a worker follows its own round r-1 and that of its
  neighbor. As the ring has more rounds than workers, all end 2 (N-1) rounds after the slowest
  worker began, so rounds need no events.

The network between the ports is not the limit, as in ``capacity``.
"""

import math
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from graph_analyzer.capacity import Capacity
from graph_analyzer.errors import AnalysisError
from graph_analyzer.port import SharedPort

SCHEMES = ("synchronous", "asynchronous", "mirrored")
STEPS = 100
MAX_WORKER_STEPS = 5_000_000  # about two minutes
MAX_SIGMA = 4.0
WARM_UP = 0.2  # of asynchronous steps, which all begin at once
PARTS = ("server port", "worker port", "computation", "straggler", "latency", "apply")


@dataclass(frozen=True)
class Behavior:
    """What tasks do besides moving bytes; times are in seconds. See the module."""

    compute: float
    sigma: float = 0.0
    latency: float = 0.0
    message_time: float = 0.0
    apply: float = 0.0
    scheme: str = "synchronous"
    steps: int = STEPS
    seed: int = 0

    def check(self, workers: int) -> None:
        """Raise ``AnalysisError`` for numbers that describe no step."""
        for name in ("compute", "latency", "message_time", "apply"):
            if not 0 <= getattr(self, name) < math.inf:
                shown = name.replace("_", " ")
                raise AnalysisError(f"{shown}: {getattr(self, name)} is not 0 or more seconds")
        if not 0 <= self.sigma <= MAX_SIGMA:
            raise AnalysisError(f"sigma: {self.sigma} is not between 0 and {MAX_SIGMA:g}")
        if self.scheme not in SCHEMES:
            raise AnalysisError(f"unknown scheme {self.scheme!r}; use one of {', '.join(SCHEMES)}")
        if self.steps < 1:
            raise AnalysisError(f"steps: {self.steps} is less than 1")
        if self.steps * workers > MAX_WORKER_STEPS:
            raise AnalysisError(
                f"{self.steps} steps of {workers} workers are more than {MAX_WORKER_STEPS}, which "
                f"takes minutes. Simulate at most {MAX_WORKER_STEPS // workers} steps"
            )


@dataclass(frozen=True)
class StepTimes:
    """The distribution of step times, in seconds.

    ``shares`` are the parts of the mean step by what it was spent on, in sum 1: along the worker
    that ends a synchronous step, else over all workers. "server port" is the time in which
    transfers shared a server's port, "straggler" is computation beyond the median.
    """

    scheme: str
    compute: float
    sigma: float
    steps: int
    p50: float
    p95: float
    p99: float
    mean: float
    shares: dict[str, float]

    @property
    def bound(self) -> str:
        """The part that takes longest, one of ``PARTS``."""
        return max(self.shares, key=lambda part: self.shares[part])

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, as in ``schema.json``."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"bound": self.bound}


class _Step(NamedTuple):
    """Where the time of one worker's step went, and how long it took."""

    seconds: float
    spent: tuple[float, ...]  # as PARTS


def simulate(capacity: Capacity, behavior: Behavior) -> StepTimes:
    """Simulate steps of ``capacity``'s cluster; the same arguments return the same times.

    Raises ``AnalysisError`` for numbers out of range.
    """
    behavior.check(capacity.workers)
    draws = _computations(behavior, capacity.workers)
    if behavior.scheme == "mirrored":
        found = list(_mirrored(capacity, behavior, draws))
    else:
        found = _Cluster(capacity, behavior, draws).run()
    seconds = sorted(one.seconds for one in found)
    spent = map(sum, zip(*(one.spent for one in found), strict=True))
    total = sum(seconds)
    shares = ((part, of / total if total else 0.0) for part, of in zip(PARTS, spent, strict=True))
    return StepTimes(
        scheme=behavior.scheme,
        compute=behavior.compute,
        sigma=behavior.sigma,
        steps=behavior.steps,
        p50=_percentile(seconds, 50),
        p95=_percentile(seconds, 95),
        p99=_percentile(seconds, 99),
        mean=total / len(seconds),
        shares={part: min(share, 1.0) for part, share in shares},  # up to rounding
    )


def _computations(behavior: Behavior, workers: int) -> list[list[float]]:
    """Per worker and step, so that they do not depend on the order of events."""
    generator = random.Random(behavior.seed)
    steps = range(behavior.steps)
    if not behavior.sigma:
        return [[behavior.compute for _ in steps] for _ in range(workers)]
    return [
        [behavior.compute * generator.lognormvariate(0, behavior.sigma) for _ in steps]
        for _ in range(workers)
    ]


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    return ordered[-(-percent * len(ordered) // 100) - 1]


def _mirrored(capacity: Capacity, behavior: Behavior, draws: list[list[float]]) -> Iterator[_Step]:
    rounds = 2 * (capacity.workers - 1)
    part = capacity.model_bytes / capacity.workers
    port = rounds * (part / capacity.bandwidth + behavior.message_time)
    latency = rounds * behavior.latency
    for step in zip(*draws, strict=True):
        slowest = max(step)
        usual = min(slowest, behavior.compute)
        spent = (0.0, port, usual, slowest - usual, latency, 0.0)
        yield _Step(port + slowest + latency, spent)


class _Cluster:
    """Workers and the servers that they share."""

    def __init__(self, capacity: Capacity, behavior: Behavior, draws: list[list[float]]) -> None:
        import simpy  # here, because only a simulation needs it

        self._env: Any = simpy.Environment()
        self._behavior, self._draws = behavior, draws
        per_server = [
            shard / capacity.bandwidth + tensors * behavior.message_time
            for shard, tensors in zip(capacity.shards, capacity.tensors, strict=True)
        ]
        alone, share = sum(per_server), max(per_server)
        self._reads = SharedPort(self._env, alone, share)
        self._gradients = SharedPort(self._env, alone, share)
        self._applied = 0.0  # when the servers have applied all gradients that arrived

    def run(self) -> list[_Step]:
        """Return the steps: of the cluster if synchronous, else of all workers."""
        if self._behavior.scheme == "synchronous":
            process = self._env.process(self._synchronous())
            found: list[_Step] = self._env.run(process)
            return found
        done: list[list[_Step]] = [[] for _ in self._draws]
        workers = [
            self._env.process(self._asynchronous(draws, steps))
            for draws, steps in zip(self._draws, done, strict=True)
        ]
        # Beyond the first worker's last step, the others would have less company.
        self._env.run(self._env.any_of(workers))
        counted = int(WARM_UP * self._behavior.steps)
        return [step for steps in done for step in steps[counted:]]

    def _synchronous(self) -> Generator[Any, Any, list[_Step]]:
        found = []
        for step in zip(*self._draws, strict=True):
            workers = [self._env.process(self._step(seconds)) for seconds in step]
            yield self._env.all_of(workers)
            found.append(max((each.value for each in workers), key=lambda one: one.seconds))
        return found

    def _asynchronous(self, draws: list[float], done: list[_Step]) -> Generator[Any, Any, None]:
        for seconds in draws:
            one = yield from self._step(seconds)
            done.append(one)

    def _step(self, computing: float) -> Generator[Any, Any, _Step]:
        env, behavior, reads, gradients = self._env, self._behavior, self._reads, self._gradients
        begin = env.now
        received = reads.transfer()
        crowded = -reads.crowded
        yield received
        crowded += reads.crowded
        transferring = env.now - begin
        yield env.timeout(behavior.latency + computing)
        computed = env.now
        sent = gradients.transfer()
        crowded -= gradients.crowded
        yield sent
        crowded += gradients.crowded
        transferring += env.now - computed
        arrived = env.now + behavior.latency
        applied = self._applied = max(self._applied, arrived) + behavior.apply
        if applied > env.now:
            yield env.timeout(applied - env.now)
        usual = min(computing, behavior.compute)
        crowded = min(crowded, transferring)  # up to rounding
        return _Step(
            env.now - begin,
            (
                *(crowded, transferring - crowded, usual, computing - usual),
                *(2 * behavior.latency, applied - arrived if behavior.apply else 0.0),
            ),
        )
