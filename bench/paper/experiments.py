"""What is measured, over gRPC and over rdma in turns; each function returns plain numbers."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tools.guest.machine import booted
from tools.guest.packages import UnavailableError

from .. import edges, references, train_models, verbs
from ..models import MODELS
from ..support.cluster import Cluster
from ..support.sizes import size_name
from ..support.timing import plain

Say = Callable[[str], None]
Rows = list[dict[str, Any]]

# Everything, and everything but one of what the design has over an RPC.
WAYS: dict[str, edges.Way] = {
    "grpc": ("grpc", {}),
    "rdma": ("rdma", {}),
    "copying": ("rdma", {"RDMA_TRANSPORT_ZERO_COPY": "off"}),
    "dynamic": ("rdma", {"RDMA_TRANSPORT_STATIC": "off"}),
}
FAKE_IBVERBS = (
    Path(__file__).parents[2] / "build/debug/tests/native/fake_ibverbs/libfake_ibverbs.so"
)
PROTOCOLS = ("grpc", "rdma")
STEPS_IN_A_TURN = 10


@dataclass(frozen=True)
class Effort:
    """How much of everything."""

    sizes: tuple[int, ...] = (4, 64, 2**10, 2**14, 2**18, 2**20, 2**22, 2**24)
    repeat: int = 40
    verbs_sizes: tuple[int, ...] = (4, 2**13, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24)
    verbs_repeat: int = 24
    soft_roce_sizes: tuple[int, ...] = (4, 2**13, 2**14, 2**16, 2**18, 2**20)
    soft_roce_repeat: int = 12
    models: tuple[str, ...] = tuple(MODELS)
    model_steps: int = 8
    scaled: tuple[str, ...] = ("fcn5", "gru")
    workers: tuple[int, ...] = (1, 2, 4)
    steps: int = 200


FEW = (4, 2**16)  # bytes
QUICK = Effort(FEW, 6, FEW, 6, FEW, 6, ("gru",), 6, ("gru",), (1, 2), 30)


def message_sizes(effort: Effort, say: Say) -> Rows:
    """Microseconds that an edge adds by bytes, for each of WAYS, and the floor of a hop."""
    return _edges(edges.measure_on, WAYS, effort.sizes, effort.repeat, say)


def verbs_message_sizes(effort: Effort, say: Say) -> Rows:
    """The same over verbs, on a library without a card."""
    if not FAKE_IBVERBS.exists():
        advice = "run make paper, or leave verbs_message_sizes out of --only"
        raise FileNotFoundError(f"{FAKE_IBVERBS} is not built: {advice}")
    verbs = {"RDMA_TRANSPORT_FABRIC": "verbs", "RDMA_TRANSPORT_LIBIBVERBS": str(FAKE_IBVERBS)}
    ways = {name: (protocol, extra | verbs) for name, (protocol, extra) in edges.WAYS.items()}
    return _edges(edges.measure_on, ways, effort.verbs_sizes, effort.verbs_repeat, say)


def soft_roce_message_sizes(effort: Effort, say: Say) -> Rows:
    """The same between two virtual machines with Soft-RoCE."""
    try:
        with booted(2) as guests:
            say("measuring edges")
            report = verbs.edges(guests, effort.soft_roce_sizes, effort.soft_roce_repeat)
    except UnavailableError as error:
        advice = "leave soft_roce_message_sizes out of --only"
        raise FileNotFoundError(f"cannot start virtual machines: {error}; {advice}") from error
    rows: Rows = report["rows"]
    return rows


def passed_references(effort: Effort, say: Say) -> Rows:
    """Microseconds of an edge that passes a reference by bytes, and inside one process."""
    return _edges(references.measure_on, WAYS, effort.sizes, effort.repeat, say)


def _edges(
    measure_on: Callable[..., Rows],
    ways: Mapping[str, edges.Way],
    sizes: tuple[int, ...],
    repeat: int,
    say: Say,
) -> Rows:
    def track(sizes: list[int], what: str) -> Iterator[int]:
        for size in sizes:
            say(f"{what}: {size_name(size)}")
            yield size

    with edges.started(ways) as clusters:
        rows = measure_on(clusters, list(sizes), repeat, edges.JOBS, track)
    return plain(rows)


def models(effort: Effort, say: Say) -> Rows:
    """Milliseconds per step of each model, with two workers."""
    return [_model(name, 2, effort, say) for name in effort.models]


def scaling(effort: Effort, say: Say) -> Rows:
    """The same for a growing number of workers."""
    return [
        _model(name, workers, effort, say) for name in effort.scaled for workers in effort.workers
    ]


def _model(name: str, workers: int, effort: Effort, say: Say) -> dict[str, Any]:
    def say_more(what: str) -> None:
        say(f"{name}, {workers} workers: {what}")

    row = train_models.measure(
        MODELS[name],
        batch=2,
        repeat=effort.model_steps,
        seconds=30,
        warm_up=20,
        say=say_more,
        workers=workers,
    )
    kept = ["model", "variables_mib", "measured", "ratio", "equal", "finite"]
    kept += ["total_mib_per_step", "static_share", "not_copied_share", "registrations"]
    return {
        "workers": workers,
        "ms": {protocol: times.as_dict() for protocol, times in row["ms"].items()},
        **{key: row[key] for key in kept},
    }


def convergence(effort: Effort, say: Say) -> Rows:
    """Losses of a network that learns handwritten digits, and the seconds each step took."""
    import numpy as np
    import tensorflow as tf

    from examples import digits_model

    from ..support.session import opened

    _, _, test_images, test_labels = digits_model.data()
    graph = tf.Graph()
    with graph.as_default():
        model = digits_model.build(digits_model.SPREAD)
    rows: dict[str, dict[str, Any]] = {p: {"losses": [], "seconds": []} for p in PROTOCOLS}
    feeds = {protocol: digits_model.feeds(model) for protocol in PROTOCOLS}
    with ExitStack() as stack:
        sessions = {}
        for protocol in PROTOCOLS:
            cluster = stack.enter_context(Cluster({"ps": 1, "worker": 2}, protocol))
            sessions[protocol] = stack.enter_context(opened(cluster.target("worker"), graph))
            sessions[protocol].run(model.initializer)
        for done in range(0, effort.steps, STEPS_IN_A_TURN):
            say(f"{done} of {effort.steps} steps")
            for protocol, session in sessions.items():
                for feed in islice(feeds[protocol], STEPS_IN_A_TURN):
                    loss, seconds = _timed(session, [model.loss, model.train], feed)
                    rows[protocol]["losses"].append(loss)
                    rows[protocol]["seconds"].append(seconds)
        for protocol, session in sessions.items():
            guesses = session.run(model.predictions, {model.test_images: test_images})
            rows[protocol]["accuracy"] = float(np.mean(guesses == test_labels))
    return [{"protocol": protocol, **row} for protocol, row in rows.items()]


def _timed(session: Any, fetches: Any, feed: Any) -> tuple[float, float]:
    start = time.perf_counter()
    loss, _ = session.run(fetches, feed)
    return float(loss), time.perf_counter() - start
