"""Runs training steps of a model over several protocols in turns, each with its own cluster.

There are one parameter server and two workers. All protocols run the same graph with the same seed.
Every step fetches the losses of both workers. "local" runs it without a cluster: server and workers
are devices of this process, so nothing is communicated.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from .models import Model
from .support.cluster import Cluster
from .support.counters import Counts, combine
from .support.exit import watched
from .support.hosts import Layout, everything_here

LOCAL = "local"
SERVERS = ["/job:ps/task:0"]
WORKERS = 2
WARM_UP = 6  # edges become static after a few equal steps
FEWEST = 6  # of which bench.support.timing makes a summary
SETTLE_SECONDS = 0.5  # in longer steps, the effects of the other protocol's turn are negligible


@dataclass
class Side:
    """One protocol's session, and the results of its steps."""

    session: Any
    fetches: Any
    milliseconds: list[float] = field(default_factory=list)
    losses: list[list[str]] = field(default_factory=list)  # per step and worker, all bits

    def step(self) -> float:
        """Run a step; return its seconds."""
        start = time.perf_counter()
        losses, _ = self.session.run(self.fetches)
        taken = time.perf_counter() - start
        self.losses.append([float(loss).hex() for loss in losses])
        return taken


@dataclass
class Steps:
    """What was measured of one model; `steps` counts all of them, with those that warm up."""

    sides: dict[str, Side]
    steps: int
    measured: int
    unmeasured: int  # steps in between, which absorb the effects of the other protocol's turn
    counted: dict[str, Counts | None]  # by protocol with a cluster, over measured and unmeasured
    routes: list[Counts]  # how rdma's tasks reached each other

    @property
    def equal(self) -> bool:
        """Whether the losses of all protocols are equal bit for bit."""
        first, *others = (side.losses for side in self.sides.values())
        return all(other == first for other in others)

    @property
    def finite(self) -> bool:
        """Return whether all losses are finite."""
        losses = (side.losses for side in self.sides.values())
        return all(
            math.isfinite(float.fromhex(loss)) for each in losses for step in each for loss in step
        )


Say = Callable[[str, float], None]  # what is being done, and the part that is done


def measure_steps(
    model: Model,
    protocols: Sequence[str],
    batch: int,
    repeat: int,
    seconds: float,
    warm_up: int,
    say: Say,
    layout: Layout = everything_here,
    environment: dict[str, str] | None = None,
    workers: int = WORKERS,
) -> Steps:
    """Take `repeat` steps over each protocol in turns, in clusters of the model's own."""
    from .models.training import TrainingGraph, training_graph
    from .support.session import config, opened

    def progress(what: str, step: int) -> None:
        say(what, step / (warm_up + repeat))

    def start(target: str, made: TrainingGraph) -> Side:
        options = config(cpu_devices=1 if target else 1 + workers)
        session = stack.enter_context(opened(target, made.graph, options))
        session.run(made.initializer)
        return Side(session, [made.losses, made.train])

    progress("making the graph", 0)
    towers = [f"/job:worker/task:{index}" for index in range(workers)]
    made = training_graph(model, batch=batch, workers=towers, servers=SERVERS)
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        clusters = {}
        for protocol in protocols:
            if protocol == LOCAL:
                continue
            progress(f"{protocol}: starting {len(SERVERS) + workers} tasks", 0)
            jobs = {"ps": len(SERVERS), "worker": workers}
            cluster = Cluster(jobs, protocol, environment, layout=layout)
            clusters[protocol] = stack.enter_context(cluster)
            stack.callback(watched(clusters[protocol]))
        for protocol, cluster in clusters.items():
            progress(f"{protocol}: initial values", 0)
            sides[protocol] = start(cluster.target("worker"), made)
        if LOCAL in protocols:
            devices = [f"/cpu:{index}" for index in range(1 + workers)]
            here = training_graph(model, batch=batch, workers=devices[1:], servers=devices[:1])
            sides[LOCAL] = start("", here)

        slowest = 0.0
        for step in range(warm_up):
            progress(f"warming up {step + 1}/{warm_up}", step)
            slowest = max(side.step() for side in sides.values())
        settle = len(sides) > 1 and slowest < SETTLE_SECONDS
        before = {protocol: cluster.counted() for protocol, cluster in clusters.items()}
        deadline = time.perf_counter() + seconds
        measured = 0
        while measured < repeat and (measured < FEWEST or time.perf_counter() < deadline):
            progress(f"measuring {measured + 1}/{repeat}", warm_up + measured)
            for side in sides.values():
                if settle:
                    side.step()
                side.milliseconds.append(1e3 * side.step())
            measured += 1
        after = {protocol: cluster.counted() for protocol, cluster in clusters.items()}
        routes = clusters["rdma"].routes() if after.get("rdma") else []
    differences = {
        protocol: None if now is None or then is None else combine(now, then, -1)
        for (protocol, now), then in zip(after.items(), before.values(), strict=True)
    }
    unmeasured = measured * settle
    steps = warm_up + measured + unmeasured
    return Steps(sides, steps, measured, unmeasured, differences, routes)
