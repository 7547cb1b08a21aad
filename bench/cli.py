"""The command line of the measurements: `rdma-transport bench`, and the same as `python -m bench`.

Exit codes: 0; 1 a measurement failed or a value was wrong; 2 usage; 3 what was asked for is not
available, or gRPC took what was asked as rdma; 4 a peer did not come in time; 130 Ctrl-C.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from graph_analyzer.cli import make_app, run

if TYPE_CHECKING:
    from bench.levels import Where
    from bench.performing import Asked, Measure
    from bench.report import Result

HELP = """Measure the transport, alone or beside gRPC; without a command: a short run of all.

The fabric by itself (fabric), and TensorFlow's tasks over it: an edge of a graph (edges), the three
micro-benchmarks of TF-gRPC-Bench (latency, bandwidth, ps), all-reduce, and training steps (train).
One command starts all processes on this host. Across hosts give every host the same command with
--hosts, and each its --role; role 0 measures and prints.
"""


class AllByDefault(TyperGroup):
    """Takes no command for ``all``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``all`` before options that are not ``--help``."""
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h")):
            args = ["all", *args]
        return super().parse_args(ctx, args)


app = make_app(HELP, AllByDefault)


def _command() -> str:
    """What was typed, by the name that works everywhere."""
    words = sys.argv[1:]
    return " ".join(["rdma-transport", "bench", *(words[1:] if words[:1] == ["bench"] else words)])


def _hosts(text: str, role: int) -> tuple[tuple[str, int], ...]:
    from bench.support.sizes import parse_place

    if not text:
        if role:
            raise typer.BadParameter("needs --hosts", param_hint="--role")
        return ()
    places = tuple(parse_place(each.strip()) for each in text.split(","))
    if len(places) < 2 or not all(host for host, _ in places):
        raise typer.BadParameter(f"'{text}' is not HOST:PORT,HOST:PORT", param_hint="--hosts")
    if role >= len(places):
        raise typer.BadParameter(f"{role} is not one of {len(places)} hosts", param_hint="--role")
    return places


def _check_plot(path: Path) -> None:
    if path.suffix not in (".png", ".svg"):
        raise typer.BadParameter(f"'{path}' is neither .png nor .svg", param_hint="--plot")
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}", param_hint="--plot")
    if find_spec("matplotlib") is None:
        raise typer.BadParameter("pip install matplotlib first", param_hint="--plot")


def alone(
    fabric: Annotated[
        Literal["auto", "shm", "verbs"] | None,
        typer.Option(help="which one, or exit code 3  [default: RDMA_TRANSPORT_FABRIC]"),
    ] = None,
    hosts: Annotated[
        str, typer.Option(help="HOST:PORT,HOST:PORT of each role; servers take the ports after it")
    ] = "",
    role: Annotated[int, typer.Option(min=0, help="of this host; 0 measures")] = 0,
    connect_timeout: Annotated[
        float, typer.Option(min=0, help="seconds until the others must be there, or exit code 4")
    ] = 60.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="only JSON on stdout; its schema: bench/schema.json")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="draw into this .png or .svg; needs matplotlib")
    ] = None,
    protocols: tuple[str, ...] = (),
) -> "Asked":
    """The options that all commands have; typer.BadParameter says what is wrong with them."""
    from bench.levels import Where
    from bench.performing import Asked

    if plot is not None:
        _check_plot(plot)
    places = _hosts(hosts, role)
    where = Where(protocols, fabric or "")
    return Asked(_command(), where, places, role, connect_timeout, as_json, plot)


def beside_grpc(
    protocol: Annotated[Literal["rdma", "grpc"], typer.Option(help="what the tasks use")] = "rdma",
    compare: Annotated[
        Literal["none", "grpc"],
        typer.Option(help="grpc: measure that too, in turns in the same run, and give the ratio"),
    ] = "none",
    **values: Any,
) -> "Asked":
    """Those that all commands with TensorFlow's tasks have."""
    wanted = dict.fromkeys(name for name in (compare, protocol) if name != "none")
    return alone(**values, protocols=tuple(wanted))


def measured(
    name: str, options: Callable[..., "Asked"]
) -> Callable[[Callable[..., "Measure"]], Callable[..., "Measure"]]:
    """A command with its function's options and those of `options`; performs what it returns."""

    def decorate(function: Callable[..., "Measure"]) -> Callable[..., "Measure"]:
        own = inspect.signature(function).parameters
        shared = dict(inspect.signature(options).parameters)
        if shared.pop("values", None):
            shared |= inspect.signature(alone).parameters
        shared.pop("protocols", None)

        @functools.wraps(function)
        def command(**values: Any) -> None:
            from bench.performing import perform

            measure = function(**{option: values.pop(option) for option in own})
            perform(options(**values), measure)

        parameters = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in (*own.values(), *shared.values())
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name)(command)
        return function

    return decorate


def once(measure: Callable[["Where"], "Result"]) -> "Measure":
    """What gives one result."""

    def results(where: "Where") -> "Iterator[Result]":
        yield measure(where)

    return results


Sizes = Annotated[str, typer.Option(help="with commas; A…B or A..B: by factors of four")]
Payloads = Annotated[
    str,
    typer.Option(
        help="messages, with commas: small (10 B), medium (10 KiB) or large (1 MiB) buffers; "
        "a uniform, random or skewed (60 % large, 30 % medium, 10 % small) mix; or any size"
    ),
]
Buffers = Annotated[int, typer.Option(min=1, max=1000, help="of a message")]
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
Repeat = Annotated[int, typer.Option(min=6, help="measurements of each")]
Workers = Annotated[int, typer.Option(min=1, max=64)]
Servers = Annotated[int, typer.Option(min=1, max=64)]


@measured("all", functools.partial(alone, protocols=("grpc", "rdma")))
def everything() -> "Measure":
    """A short run of all, beside gRPC; the default.

    Takes about two minutes.
    """
    from bench.overview import overview

    return overview


@measured("fabric", alone)
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


@measured("edges", beside_grpc)
def edges(sizes: Sizes = "4,64,4KiB…16MiB", repeat: Repeat = 15) -> "Measure":
    """Time of one edge between two tasks.

    A tensor goes to and fro inside a step; long and short chains of edges are compared.
    """
    from bench import levels
    from bench.support.sizes import parse_sizes

    wanted = parse_sizes(sizes)
    return once(lambda where: levels.edges(where, wanted, repeat))


@measured("latency", beside_grpc)
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
    from bench import levels
    from bench.payloads import parse_payloads

    messages = parse_payloads(payloads, buffers, seed)
    options = (serialised, seconds, warm_up)
    return lambda where: levels.exchange(where, ["latency"], messages, 1, 1, *options)


@measured("bandwidth", beside_grpc)
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
    from bench import levels
    from bench.payloads import parse_payloads

    messages = parse_payloads(payloads, buffers, seed)
    options = (serialised, seconds, warm_up)
    return lambda where: levels.exchange(where, ["bandwidth"], messages, 1, 1, *options)


@measured("ps", beside_grpc)
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
    from bench import levels
    from bench.payloads import parse_payloads

    messages = parse_payloads(payloads, buffers, seed)
    options = (workers, servers, serialised, seconds, warm_up)
    return lambda where: levels.exchange(where, ["throughput"], messages, *options)


@measured("all-reduce", beside_grpc)
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


@measured("train", beside_grpc)
def train(
    models: Annotated[str, typer.Option(help="names, with commas, or all")] = "all",
    batch: Annotated[int, typer.Option(help="examples per worker", min=1)] = 2,
    steps: Annotated[int, typer.Option(help="measured, of each model", min=6)] = 8,
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
