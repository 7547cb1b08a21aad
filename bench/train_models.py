"""Measures a training step of the paper's models, over gRPC and over rdma, with rdma's counters.

Beside them stands the same step in one process ("local"), where the server and the workers are
devices: what rdma's step takes longer is what remains of communication.

One parameter server and the workers run as separate processes. All run the same graph with the same
seed and take turns. Every step fetches the losses of all workers, which are compared bit for bit.
The counters of rdma cover only the measured steps, after the warm-up.

Every model has its own clusters, because variables outlive the session that created them, and two
models may use one name for different variables.

usage: python -m bench.train_models [--models alexnet,gru] [--repeat 8] [--batch 2]
           [--seconds 30] [--warm-up 6] [--veth cubic] [--json]
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

from .models import MODELS, Model
from .options import between, performed
from .report import MIN_SAMPLES, Result, Row, times_of
from .support.cluster import Cluster
from .support.counters import MODES, NOTHING, Counts, above_zero, combine
from .support.exit import run_command
from .support.options import choose
from .support.progress import Bar
from .where import Measure, Where, clusters

LOCAL = "local"
SERVERS = ["/job:ps/task:0"]
WORKERS = 2
WARM_UP = 6  # edges become static after a few equal steps
SETTLE_SECONDS = 0.5  # in longer steps, the effects of the other protocol's turn are negligible
SHOWN = 5  # names in a note
MIB = 2**20
NOTE = (
    "#bytes: size of the variables. #wrong: steps whose losses differ. local: in one process. From "
    "MiB/step on: counters of all tasks over rdma, after the warm-up; not copied %: of the sent "
    "bytes, what the transport did not copy and what did not fall back to gRPC."
)


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


def _sides(
    stack: ExitStack, model: Model, batch: int, workers: int, made: Mapping[str, Cluster]
) -> dict[str, Side]:
    """A session on each cluster, and for LOCAL on devices of this process."""
    from .models.training import training_graph
    from .support.session import config, opened

    def side(target: str, devices: list[str], servers: list[str]) -> Side:
        graph = training_graph(model, batch=batch, workers=devices, servers=servers)
        options = config(cpu_devices=1 if target else 1 + workers)
        session = stack.enter_context(opened(target, graph.graph, options))
        session.run(graph.initializer)
        return Side(session, [graph.losses, graph.train])

    towers = [f"/job:worker/task:{index}" for index in range(workers)]
    sides = {
        name: side(cluster.target("worker"), towers, SERVERS) for name, cluster in made.items()
    }
    devices = [f"/cpu:{index}" for index in range(1 + workers)]
    return sides | {LOCAL: side("", devices[1:], devices[:1])}


def train(
    where: Where,
    models: Sequence[str],
    batch: int = 2,
    steps: int = 8,
    seconds: float = 30.0,
    warm_up: int = WARM_UP,
    workers: int = WORKERS,
) -> Result:
    """Training steps of `bench.models`, with one parameter server."""
    options = {"batch": batch, "steps": steps, "seconds": seconds, "warm_up": warm_up}
    title = f"training step of 1 parameter server and {workers} workers"
    result = Result("train", title, options | {"workers": workers}, "p50", notes=[NOTE])
    for index, name in enumerate(models):
        bar = where.bar.section(index, len(models))
        bar.at(0, f"{name}: starting {1 + workers} tasks")
        with ExitStack() as stack:
            made = stack.enter_context(clusters(where, {"ps": 1, "worker": workers}))
            sides = _sides(stack, MODELS[name], batch, workers, made)
            counted = _measure(sides, made, steps, seconds, warm_up, name, bar)
            if not result.routes:
                result.add_traffic(made)
        _add(result, MODELS[name], sides, counted, steps)
    result.compare()
    return result


def _measure(
    sides: Mapping[str, Side],
    made: Mapping[str, Cluster],
    repeat: int,
    seconds: float,
    warm_up: int,
    name: str,
    bar: Bar,
) -> dict[str, tuple[Counts | None, int]]:
    """Take steps in turns; return what each cluster counted, and over how many of its steps."""
    slowest = 0.0
    for step in range(warm_up):
        bar.at(step / (warm_up + repeat), f"{name}: warming up {step + 1}/{warm_up}")
        slowest = max(side.step() for side in sides.values())
    settle = len(sides) > 1 and slowest < SETTLE_SECONDS
    before = {protocol: cluster.counted() for protocol, cluster in made.items()}
    deadline = time.perf_counter() + seconds
    measured = 0
    while measured < repeat and (measured < MIN_SAMPLES or time.perf_counter() < deadline):
        part = (warm_up + measured) / (warm_up + repeat)
        bar.at(part, f"{name}: measuring {measured + 1}/{repeat}")
        for side in sides.values():
            if settle:  # absorbs the effects of the other protocol's turn
                side.step()
            side.milliseconds.append(1e3 * side.step())
        measured += 1
    found: dict[str, tuple[Counts | None, int]] = {}
    for protocol, cluster in made.items():
        then, now = before[protocol], cluster.counted()
        known = None if then is None or now is None else combine(now, then, -1)
        found[protocol] = known, measured * (1 + settle)
    return found


def _add(
    result: Result,
    model: Model,
    sides: Mapping[str, Side],
    counted: Mapping[str, tuple[Counts | None, int]],
    steps: int,
) -> None:
    """Add the rows of a model, and notes about what they do not show."""
    first = next(iter(sides.values())).losses
    for protocol, side in sides.items():
        counts, number = counted.get(protocol, (None, 0))
        row = Row(
            test="step",
            name=model.name,
            bytes=round(model.mib * MIB),
            protocol=protocol,
            iterations=len(side.milliseconds),
            times=times_of([1e3 * each for each in side.milliseconds]),
            per_second=1e3 * len(side.milliseconds) / sum(side.milliseconds),
            wrong=sum(a != b for a, b in zip(side.losses, first, strict=True)),
            sent=counts and {mode: counts["sent"].get(mode, NOTHING) for mode in MODES},
            more=traffic(counts, number) if counts else {},
            series={"losses": side.losses},
        )
        result.rows.append(row)
        if counts:
            result.reasons = combine(
                result.reasons, above_zero(counts.get("fallback_reasons", {})), 1
            )
            result.notes += [f"{model.name}: {note}" for note in notes(counts, number)]
        if not all(math.isfinite(float.fromhex(loss)) for step in side.losses for loss in step):
            result.problems.append(f"{model.name}: a loss is not finite")
    if row.iterations < steps:
        result.notes.append(f"{model.name}: only {row.iterations} steps were measured (--seconds)")


def traffic(counts: Counts, steps: int) -> dict[str, float | str]:
    """What so many steps of rdma were, from the difference of the counters."""
    sent = {mode: count["bytes"] for mode, count in counts["sent"].items()}
    total = sum(sent.values())
    # What falls back to gRPC is copied too; the transport counts only its own copies.
    copied = counts["copied_bytes"] + sent.get("grpc", 0)
    plan = counts.get("plan")
    return {
        "MiB/step": total / steps / MIB,
        "static %": math.floor(1e4 * sent.get("static", 0) / total) / 100 if total else 0.0,
        "not copied %": math.floor(1e4 * (1 - copied / total)) / 100 if total else 100.0,
        "registrations": counts["registrations"],
        "slots": "not counted" if plan is None else plan.get("slot_allocations", 0),
    }


def notes(counts: Counts, steps: int) -> list[str]:
    """What the table has no column for, where there is any."""

    def listed(found: Counts) -> str:
        most = sorted(found, key=lambda name: -found[name])
        parts = [f"{name} {found[name]:.4g}" for name in most[:SHOWN]]
        return ", ".join([*parts, *([f"and {len(most) - SHOWN} more"] if most[SHOWN:] else [])])

    plan = counts.get("plan") or {}
    found = {
        "misses of the plan": plan.get("misses", {}),
        "changes of the plan": {name: plan.get(name, 0) for name in ("promotions", "demotions")},
        "errors": counts.get("errors", {}),
    }
    for kind, staged in plan.items():
        if kind.startswith("staged_bytes_by_"):
            mib = {name: count / steps / MIB for name, count in above_zero(staged).items()}
            found[f"MiB/step staged by {kind.removeprefix('staged_bytes_by_')}"] = mib
    texts = {name: listed(above_zero(each)) for name, each in found.items()}
    return [f"{name}: {text}" for name, text in texts.items() if text]


@performed(between)
def main(
    models: Annotated[
        str, typer.Option(help="Train these models, separated by commas.")
    ] = ",".join(MODELS),
    repeat: Annotated[
        int, typer.Option(help="Measure this many steps per model.", min=MIN_SAMPLES)
    ] = 8,
    batch: Annotated[int, typer.Option(help="Set the examples per worker.", min=1)] = 2,
    seconds: Annotated[
        float,
        typer.Option(
            help=f"Start no step after this many seconds, but measure at least {MIN_SAMPLES}.",
            min=0,
        ),
    ] = 30,
    warm_up: Annotated[int, typer.Option(help="Warm up for this many steps.", min=1)] = WARM_UP,
) -> Measure:
    """Print the time of a training step over both protocols and in one process, per model."""
    wanted = choose(models, MODELS, "model", "--models")
    return lambda where: replace(train(where, wanted, batch, repeat, seconds, warm_up), unit="ms")


if __name__ == "__main__":
    run_command(main)
