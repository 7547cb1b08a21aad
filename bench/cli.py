"""The command line of the measurements: `rdma-transport bench`, and the same as `python -m bench`.

Exit codes: 0; 1 a measurement failed or a value was wrong; 2 usage; 3 what was asked for is not
available, or gRPC took what was asked as rdma; 4 a peer did not come in time; 130 Ctrl-C.
"""

import functools
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from bench.options import alone, beside_grpc, once, performed
from graph_analyzer.cli import make_app, run

if TYPE_CHECKING:
    from bench.performing import Measure

HELP = """Measure the transport, alone or beside gRPC.

Without a command: a short run of all.

The fabric by itself (fabric), and TensorFlow's tasks over it: an edge of a graph (edges), the three
micro-benchmarks of TF-gRPC-Bench (latency, bandwidth, ps), all-reduce, and training steps (train).
One command starts all processes on this host. Across hosts give every host the same command with
--hosts, and each its --role; role 0 measures and prints.

Exit codes: 1 a measurement failed or a value was wrong, 2 usage, 3 the fabric is not there or gRPC
took what was asked as rdma, 4 a host was not there in time, 130 Ctrl-C.
"""


class AllByDefault(TyperGroup):
    """Takes no command for ``all``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``all`` before options that are not ``--help``."""
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h")):
            args = ["all", *args]
        return super().parse_args(ctx, args)


app = make_app(HELP, AllByDefault)


Sizes = Annotated[str, typer.Option(help="with commas; A…B or A..B: by factors of four")]
Payloads = Annotated[
    str,
    typer.Option(
        help="messages, with commas: small (10 B), medium (10 KiB) or large (1 MiB) buffers; "
        "a uniform, random or skewed (60 % large, 30 % medium, 10 % small) mix; or any size"
    ),
]
Buffers = Annotated[int, typer.Option(min=1, max=100, help="of a message")]
Seed = Annotated[int, typer.Option(help="of the random mix")]
Serialised = Annotated[
    bool,
    typer.Option(
        "--serialised",
        help="pack each buffer with tf.io.serialize_tensor; such strings go by gRPC in any case",
    ),
]
MIXES = "small,medium,large,uniform"
Seconds = Annotated[float, typer.Option(min=0, help="measured for each payload and protocol")]
WarmUp = Annotated[float, typer.Option(min=0, help="seconds before, uncounted")]
Repeat = Annotated[
    int, typer.Option("--repeat", "--iterations", min=6, help="measurements of each")
]
Workers = Annotated[int, typer.Option(min=1, max=64)]
Servers = Annotated[int, typer.Option(min=1, max=64)]


@app.command("all")
@performed(functools.partial(alone, protocols=("grpc", "rdma")))
def everything() -> "Measure":
    """A short run of all, beside gRPC; the default.

    Takes about two minutes.
    """
    from bench.overview import overview

    return overview


@app.command("fabric")
@performed(alone)
def fabric(
    sizes: Sizes = "64,4KiB…4MiB",
    iterations: Annotated[int, typer.Option(help="of each latency", min=10)] = 1000,
    rounds: Annotated[int, typer.Option(help="turns of each bandwidth", min=1)] = 5,
    most: Annotated[
        str, typer.Option(help="that one bandwidth moves, of a few transfers")
    ] = "256MiB",
) -> "Measure":
    """The fabric alone, without TensorFlow.

    Bandwidth, latency and rate of writes, reads and notifications, as perftest measures them, with
    up to 128 transfers under way.
    """
    from bench import levels
    from bench.support.sizes import parse_size, parse_sizes

    wanted, bytes_at_most = parse_sizes(sizes), parse_size(most)
    return once(lambda where: levels.fabric(where, wanted, iterations, rounds, bytes_at_most))


@app.command("edges")
@performed(beside_grpc)
def edges(sizes: Sizes = "4,64,4KiB…16MiB", repeat: Repeat = 15) -> "Measure":
    """Time of one edge between two tasks.

    A tensor goes to and fro inside a step; long and short chains of edges are compared.
    """
    from bench import levels
    from bench.support.sizes import parse_sizes

    wanted = parse_sizes(sizes)
    return once(lambda where: levels.edges(where, wanted, repeat))


def _calls(kind: str, messages: tuple[str, int, int], *options: Any) -> "Measure":
    """One of the micro-benchmarks; `options` are those of `levels.exchange` after the payloads."""
    from bench import levels
    from bench.payloads import parse_payloads

    payloads = parse_payloads(*messages)
    return lambda where: levels.exchange(where, [kind], payloads, *options)


@app.command("latency")
@performed(beside_grpc)
def latency(
    payloads: Payloads = MIXES,
    buffers: Buffers = 10,
    serialised: Serialised = False,
    seconds: Seconds = 10.0,
    warm_up: WarmUp = 2.0,
    seed: Seed = 1,
) -> "Measure":
    """Point-to-point latency of a message.

    As TF-gRPC-Bench measures it (Biswas, Lu, Panda, arXiv 1804.01138): a worker sends
    all buffers to a parameter server, which sends them back when it has all. Each round trip is
    timed by itself, inside a step.
    """
    messages = (payloads, buffers, seed)
    return _calls("latency", messages, 1, 1, serialised, seconds, warm_up)


@app.command("bandwidth")
@performed(beside_grpc)
def bandwidth(
    payloads: Payloads = MIXES,
    buffers: Buffers = 10,
    serialised: Serialised = False,
    seconds: Seconds = 10.0,
    warm_up: WarmUp = 2.0,
    seed: Seed = 1,
) -> "Measure":
    """Point-to-point bandwidth of messages.

    As TF-gRPC-Bench measures it (Biswas, Lu, Panda, arXiv 1804.01138): a worker sends
    all buffers to a parameter server, which answers with one byte when it has all.
    """
    messages = (payloads, buffers, seed)
    return _calls("bandwidth", messages, 1, 1, serialised, seconds, warm_up)


@app.command("ps")
@performed(beside_grpc)
def ps(
    payloads: Payloads = MIXES,
    buffers: Buffers = 10,
    workers: Workers = 1,
    servers: Servers = 1,
    serialised: Serialised = False,
    seconds: Seconds = 10.0,
    warm_up: WarmUp = 2.0,
    seed: Seed = 1,
) -> "Measure":
    """Parameter-server throughput, calls a second.

    As TF-gRPC-Bench measures it (Biswas, Lu, Panda, arXiv 1804.01138): every worker
    sends a message to every server at once, and again when each has answered with one byte.
    """
    messages = (payloads, buffers, seed)
    return _calls("throughput", messages, workers, servers, serialised, seconds, warm_up)


@app.command("all-reduce")
@performed(beside_grpc)
def all_reduce(
    sizes: Sizes = "4KiB…16MiB",
    workers: Annotated[int, typer.Option(min=2, max=64)] = 2,
    repeat: Repeat = 9,
) -> "Measure":
    """TensorFlow's ring all-reduce between workers."""
    from bench import levels
    from bench.support.sizes import parse_sizes

    wanted = parse_sizes(sizes)
    return once(lambda where: levels.all_reduce(where, wanted, workers, repeat))


@app.command("train")
@performed(beside_grpc)
def train(
    models: Annotated[str, typer.Option(help="names, with commas, or all")] = "all",
    batch: Annotated[int, typer.Option(help="examples per worker", min=1)] = 2,
    steps: Annotated[
        int, typer.Option("--steps", "--iterations", help="measured, of each model", min=6)
    ] = 8,
    seconds: Annotated[float, typer.Option(help="begin no step after this", min=0)] = 30.0,
    warm_up: Annotated[int, typer.Option(help="steps before, uncounted", min=1)] = 6,
) -> "Measure":
    """Training steps of whole models.

    AlexNet, VGG-16, Inception-v3, LSTM, GRU and FCN-5 as --models alexnet,vgg16,... One parameter
    server and two workers; the losses over two protocols must be equal bit for bit.
    """
    from bench import levels
    from bench.models import MODELS

    names = list(MODELS) if models == "all" else [name.strip() for name in models.split(",")]
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise typer.BadParameter(
            f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}", param_hint="--models"
        )
    return once(lambda where: levels.train(where, names, batch, steps, seconds, warm_up))


def main() -> None:
    """Run ``python -m bench``."""
    run(app, "python -m bench")
