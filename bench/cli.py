"""The command line of the benchmarks: `rdma-transport bench`, also as `python -m bench`."""

import functools
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from rdma_transport.command_line import make_app, run

from .options import alone, beside_grpc, both, here, performed
from .support.options import FABRIC_SIZES, MOST, Iterations, Most, Repeat, Rounds, Sizes, choose
from .where import Measure

HELP = """Measure the transport, alone or beside gRPC.

Without a command, run a short version of all benchmarks.

The command fabric measures the fabric alone, and collectives those of NumPy arrays. The others
measure TensorFlow tasks: an edge of a graph (edges), the three micro-benchmarks of TF-gRPC-Bench
(latency, bandwidth, ps), all-reduce, and training steps (train, data-parallel). One command starts
all processes on this host. To measure across hosts, run the same command with --hosts on every
host, each with its own --role. Role 0 measures and prints.
"""


class AllByDefault(TyperGroup):
    """Runs ``all`` if no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert ``all`` before options, except ``--help``."""
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h")):
            args = ["all", *args]
        return super().parse_args(ctx, args)


app = make_app(HELP, AllByDefault)


Payloads = Annotated[
    str,
    typer.Option(
        help="Send these messages, separated by commas: small (10 B), medium (10 KiB) or large "
        "(1 MiB) buffers; a uniform or skewed (60 % large, 30 % medium, 10 % small) mix; "
        "a burst of 300 buffers of 4 KiB; or a size."
    ),
]
Buffers = Annotated[int, typer.Option(min=1, max=100, help="Set the buffers per message.")]
MIXES = "small,medium,large,uniform,burst"
Seconds = Annotated[
    float, typer.Option(min=0, help="Measure each payload and protocol for this many seconds.")
]
WarmUp = Annotated[float, typer.Option(min=0, help="Warm up for this many seconds.")]
DATA_PARALLEL_MODELS, DATA_PARALLEL_RANKS = "fcn5,vgg16,lstm,variables", "1,2,2x1"
Workers = Annotated[int, typer.Option(min=1, max=64, help="Start this many workers.")]
Servers = Annotated[int, typer.Option(min=1, max=64, help="Start this many parameter servers.")]


@app.command("all")
@performed(functools.partial(alone, protocols=("grpc", "rdma")))
def everything() -> Measure:
    """Run a short version of all, beside gRPC (default).

    Takes about two minutes.
    """
    from .overview import overview

    return overview


@app.command("fabric")
@performed(alone)
def of_fabric(
    sizes: Sizes = FABRIC_SIZES,
    iterations: Iterations = 1000,
    rounds: Rounds = 5,
    most: Most = MOST,
    compare: Annotated[
        Literal["none", "ucx"],
        typer.Option(help="Measure UCX, too (ucx_perftest), in turns in the same run, on shm."),
    ] = "none",
) -> Measure:
    """Measure the fabric alone, without TensorFlow.

    Prints bandwidth, latency and rate of writes, reads and notifications, as perftest measures
    them, with up to 128 transfers in flight. On shared memory each ends at once.
    """
    from .fabric import fabric
    from .support.sizes import parse_size, parse_sizes

    wanted, at_most = parse_sizes(sizes), parse_size(most)
    return lambda where: fabric(where, wanted, iterations, rounds, at_most, compare == "ucx")


@app.command("edges")
@performed(beside_grpc)
def of_edges(sizes: Sizes = "4,64,4KiB…16MiB", repeat: Repeat = 15) -> Measure:
    """Measure the time that an edge between two tasks adds.

    A tensor goes back and forth inside a step and is computed in each hop: the step's time minus
    that of the same computation in one process, per edge. Also measures edges that pass a
    reference, and the floor: two processes that compute the same on shared memory.
    """
    from .edges import edges
    from .support.sizes import parse_sizes

    wanted = parse_sizes(sizes)
    return lambda where: edges(where, wanted, repeat)


def _calls(kind: str, messages: tuple[str, int], *options: Any) -> Measure:
    """Run a micro-benchmark; `options` go to `exchange` after the payloads."""
    from .exchange import exchange
    from .payloads import parse_payloads

    payloads = parse_payloads(*messages)
    return lambda where: exchange(where, [kind], payloads, *options)


def _between_two(kind: str, explained: str) -> None:
    """Add a command that measures a kind of messages between two tasks."""

    def command(
        payloads: Payloads = MIXES,
        buffers: Buffers = 10,
        seconds: Seconds = 10.0,
        warm_up: WarmUp = 2.0,
    ) -> Measure:
        return _calls(kind, (payloads, buffers), 1, 1, seconds, warm_up)

    command.__doc__ = f"""Measure the point-to-point {kind} of messages.

    As in TF-gRPC-Bench (Biswas, Lu, Panda, arXiv 1804.01138), a worker sends all buffers to a
    parameter server, which {explained}
    """
    app.command(kind)(performed(beside_grpc)(command))


_between_two(
    "latency",
    "returns them after it has received all. Each round trip is timed separately, inside a step.",
)
_between_two("bandwidth", "replies with one byte after it has received all.")


@app.command("ps")
@performed(beside_grpc)
def ps(
    payloads: Payloads = MIXES,
    buffers: Buffers = 10,
    workers: Workers = 1,
    servers: Servers = 1,
    seconds: Seconds = 10.0,
    warm_up: WarmUp = 2.0,
) -> Measure:
    """Measure parameter-server throughput in calls per second.

    As in TF-gRPC-Bench (Biswas, Lu, Panda, arXiv 1804.01138), every worker sends a message to all
    servers at once, and again after each server has replied with one byte.
    """
    return _calls("throughput", (payloads, buffers), workers, servers, seconds, warm_up)


@app.command("all-reduce")
@performed(beside_grpc)
def all_reduce(
    sizes: Sizes = "4KiB…16MiB",
    workers: Annotated[int, typer.Option(min=2, max=64, help="Start this many workers.")] = 2,
    repeat: Repeat = 9,
) -> Measure:
    """Measure TensorFlow's all-reduce between workers."""
    from .collectives import collectives
    from .support.sizes import parse_sizes

    wanted = parse_sizes(sizes)
    return lambda where: collectives(where, ["all_reduce"], wanted, workers, repeat)


@app.command("collectives")
@performed(here)
def of_collectives(
    sizes: Sizes = "4,1KiB,4KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB",
    ops: Annotated[
        str,
        typer.Option(
            help="Measure these collectives, separated by commas, or all. round_trip and in_flight "
            "are messages between two ranks."
        ),
    ] = "all_reduce,round_trip,in_flight",
    ranks: Annotated[int, typer.Option(min=2, max=64, help="Start this many ranks.")] = 2,
    iterations: Iterations = 1000,
    rounds: Rounds = 3,
    registered: Annotated[
        bool, typer.Option("--registered", help="Also measure arrays of Communicator.empty().")
    ] = False,
    compare: Annotated[
        str,
        typer.Option(
            help="Measure these, too, in turns, separated by a comma: mpi (through mpi4py), grpc "
            "(TensorFlow's ring), or none. The ratio is to MPI, or else to gRPC."
        ),
    ] = "none",
) -> Measure:
    """Measure collectives and messages of NumPy arrays."""
    from .numpy_collectives import OPS, OTHERS, collectives
    from .support.sizes import parse_sizes

    chosen = list(OPS) if ops == "all" else choose(ops, OPS, "collective", "--ops")
    systems = ["rdma", *(["registered"] if registered else [])]
    if compare != "none":
        systems += choose(compare, OTHERS, "system", "--compare")
    wanted = parse_sizes(sizes)
    return lambda where: collectives(where, systems, chosen, wanted, ranks, iterations, rounds)


@app.command("train")
@performed(beside_grpc)
def of_train(
    models: Annotated[
        str, typer.Option(help="Train these models, separated by commas, or all.")
    ] = "all",
    batch: Annotated[int, typer.Option(help="Set the examples per worker.", min=1)] = 2,
    steps: Annotated[
        int,
        typer.Option("--steps", "--iterations", help="Measure this many steps per model.", min=6),
    ] = 8,
    seconds: Annotated[
        float, typer.Option(help="Start no step after this many seconds.", min=0)
    ] = 30.0,
    warm_up: Annotated[int, typer.Option(help="Warm up for this many steps.", min=1)] = 6,
) -> Measure:
    """Measure training steps of whole models.

    Trains AlexNet, VGG-16, Inception-v3, LSTM, GRU and FCN-5 (--models alexnet,vgg16,...) with one
    parameter server and two workers. The losses over both protocols must be equal bit for bit.
    """
    from .models import MODELS
    from .train_models import train

    names = list(MODELS) if models == "all" else choose(models, MODELS, "model", "--models")
    return lambda where: train(where, names, batch, steps, seconds, warm_up)


@app.command("data-parallel")
@performed(here)
def data_parallel(
    models: Annotated[
        str, typer.Option(help="Train these, separated by commas, or all.")
    ] = DATA_PARALLEL_MODELS,
    ranks: Annotated[
        str,
        typer.Option(
            help="Start these ranks, separated by commas: 2 on this host, 2x1 for one on each of "
            "two network namespaces (needs root), 2x1@1gbit with a limit of the link."
        ),
    ] = DATA_PARALLEL_RANKS,
    compare: Annotated[
        str,
        typer.Option(
            help="Measure these, too, in turns, separated by commas: unchanged (as run "
            "--data-parallel), horovod-gloo, horovod-mpi, strategy-grpc, strategy-rdma "
            "(MultiWorkerMirroredStrategy), ddp (PyTorch), all of these or none; and dense, "
            "factors (gradients over rdma). What is not installed is skipped."
        ),
    ] = "all",
    batch: Annotated[
        str,
        typer.Option(
            help="Set the examples per rank, for all models; or several, separated by commas.",
            show_default="each model's",
        ),
    ] = "",
    rounds: Annotated[int, typer.Option(help="Run this many turns of each.", min=1)] = 3,
) -> Measure:
    """Measure data-parallel steps, beside other libraries.

    Prints for each library the step, and the communication that it does not hide: what a step takes
    longer than that of the same ranks without reductions. Trains the models of `train`, fit
    (keras-fit), and many or large gradients (variables, dense-64, dense-4096, and two layers of
    dense-1024-2, dense-4096-2). Takes about ten minutes if all libraries are installed.
    """
    from .data_parallel import BESIDE, SCHEMES, parse_layout
    from .data_parallel_cases import CASES, FIT, cases_of
    from .data_parallel_result import data_parallel as measure

    known = [*CASES, FIT]
    names = known if models == "all" else choose(models, known, "model", "--models")
    beside: list[str] = []
    if compare != "none":
        known = [*BESIDE, *SCHEMES]
        beside = (
            list(BESIDE) if compare == "all" else choose(compare, known, "library", "--compare")
        )
    try:
        layouts = [parse_layout(each.strip()) for each in ranks.split(",")]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ranks") from None
    batches = [each.strip() for each in batch.split(",") if batch]
    if not all(each.isdecimal() and int(each) > 0 for each in batches):
        raise typer.BadParameter(f"'{batch}' is no number, or several: 8,32", param_hint="--batch")
    cases = cases_of(names, [int(each) for each in batches])
    return lambda where: measure(where, layouts, cases, beside, rounds)


@app.command("embeddings")
@performed(both)
def of_embeddings(
    dims: Annotated[
        str, typer.Option(help="Measure rows of these lengths, separated by commas.")
    ] = "16,64,128",
    size: Annotated[str, typer.Option(help="Set the bytes of weights of each owner.")] = "256MiB",
    repeat: Repeat = 10,
    rounds: Rounds = 3,
) -> Measure:
    """Measure lookups of embeddings, beside parameter servers."""
    from .embeddings import embeddings
    from .support.sizes import parse_size

    lengths = [int(each) if each.strip().isdecimal() else 0 for each in dims.split(",")]
    if not all(lengths):
        raise typer.BadParameter(f"{dims} are not positive numbers", param_hint="--dims")
    of_each = parse_size(size)
    if of_each < 4 * max(lengths):
        raise typer.BadParameter(f"no row fits into {size}", param_hint="--size")
    return lambda where: embeddings(where, lengths, of_each, repeat, rounds)


def main() -> None:
    """Run ``python -m bench``."""
    run(app, "python -m bench")
