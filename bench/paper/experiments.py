"""What is measured, over gRPC and over rdma in turns; each function returns a `Result`."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from tools.guest.machine import booted
from tools.guest.packages import UnavailableError

from .. import edges, train_models, verbs
from ..models import MODELS
from ..report import Result, Row, times_of
from ..where import BOTH, Where, clusters

# Everything, and everything but one of what the design has over an RPC.
WAYS = ("grpc", "rdma", "copying", "dynamic")
STEPS_IN_A_TURN = 10


@dataclass(frozen=True)
class Effort:
    """How much of everything."""

    sizes: tuple[int, ...] = (4, 64, 2**10, 2**14, 2**18, 2**20, 2**22, 2**24)
    repeat: int = 40
    soft_roce_sizes: tuple[int, ...] = (4, 2**13, 2**14, 2**16, 2**18, 2**20)
    soft_roce_repeat: int = 12
    models: tuple[str, ...] = tuple(MODELS)
    model_steps: int = 8
    scaled: tuple[str, ...] = ("fcn5", "gru")
    workers: tuple[int, ...] = (1, 2, 4)
    steps: int = 200


FEW = (4, 2**16)  # bytes
QUICK = Effort(FEW, 6, FEW, 6, ("gru",), 6, ("gru",), (1, 2), 30)


def message_sizes(effort: Effort, where: Where) -> Result:
    """What an edge adds by bytes, for each of WAYS, and the floor of a hop."""
    wanted = replace(where, protocols=WAYS)
    (result,) = edges.edges(wanted, list(effort.sizes), effort.repeat, with_references=False)
    return result


def soft_roce_message_sizes(effort: Effort, where: Where) -> Result:
    """The same between two virtual machines with Soft-RoCE."""
    try:
        with booted(2) as guests:
            where.bar.at(0, "measuring edges")
            return verbs.edges(guests, effort.soft_roce_sizes, effort.soft_roce_repeat)
    except UnavailableError as error:
        advice = "leave soft_roce_message_sizes out of --only"
        raise FileNotFoundError(f"cannot start virtual machines: {error}; {advice}") from error


def models(effort: Effort, where: Where) -> Result:
    """Steps of each model, with two workers."""
    return _trained(effort, where, effort.models, 2)


def scaling(effort: Effort, where: Where) -> Result:
    """The same for a growing number of workers, which are the tests of the rows."""
    results = [_trained(effort, where, effort.scaled, workers) for workers in effort.workers]
    rows = [row for each in results for row in each.rows]
    return replace(results[0], rows=sorted(rows, key=lambda row: effort.scaled.index(row.name)))


def _trained(effort: Effort, where: Where, names: tuple[str, ...], workers: int) -> Result:
    wanted = replace(where, protocols=BOTH)
    result = train_models.train(wanted, names, 2, effort.model_steps, 30, 20, workers)
    rows = [replace(row, test=str(workers), series={}) for row in result.rows]
    return replace(result, rows=rows)


def convergence(effort: Effort, where: Where) -> Result:
    """Losses of a network that learns handwritten digits, and the seconds each step took."""
    import numpy as np
    import tensorflow as tf

    from examples import digits_model

    from ..support.session import opened

    _, _, test_images, test_labels = digits_model.data()
    graph = tf.Graph()
    with graph.as_default():
        model = digits_model.build(digits_model.SPREAD)
    result = Result("convergence", "steps of training", {"steps": effort.steps}, "p50")
    with (
        clusters(replace(where, protocols=BOTH), {"ps": 1, "worker": 2}) as made,
        ExitStack() as stack,
    ):
        sessions = {}
        for protocol, cluster in made.items():
            sessions[protocol] = stack.enter_context(opened(cluster.target("worker"), graph))
            sessions[protocol].run(model.initializer)
        feeds = {protocol: digits_model.feeds(model) for protocol in BOTH}
        taken: dict[str, list[tuple[float, float]]] = {protocol: [] for protocol in BOTH}
        for done in range(0, effort.steps, STEPS_IN_A_TURN):
            where.bar.at(done / effort.steps, f"{done} of {effort.steps} steps")
            for protocol, session in sessions.items():
                for feed in islice(feeds[protocol], STEPS_IN_A_TURN):
                    taken[protocol].append(_timed(session, [model.loss, model.train], feed))
        for protocol, session in sessions.items():
            losses, seconds = map(list, zip(*taken[protocol], strict=True))
            guesses = session.run(model.predictions, {model.test_images: test_images})
            times = times_of([1e6 * each for each in seconds])
            row = Row("step", "digits", 0, protocol, len(losses), times)
            row.more["accuracy"] = float(np.mean(guesses == test_labels))
            row.series.update(losses=losses, seconds=seconds)
            result.rows.append(row)
    return result


def _timed(session: Any, fetches: Any, feed: Any) -> tuple[float, float]:
    start = time.perf_counter()
    loss, _ = session.run(fetches, feed)
    return float(loss), time.perf_counter() - start
