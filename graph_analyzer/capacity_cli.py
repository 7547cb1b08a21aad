"""The command ``capacity``."""

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from graph_analyzer.capacity import QUEUE_PAIRS_PER_PEER, SLOTS_PER_EDGE
from graph_analyzer.errors import AnalysisError
from graph_analyzer.options import Batch, Cluster, DefaultDevice, Tags, read_plan, refuse
from graph_analyzer.plan import Plan
from graph_analyzer.records import VERSION
from graph_analyzer.simulation import SCHEMES, STEPS, Behavior
from rdma_transport.command_line import AsJson, print_json
from rdma_transport.units import parse_bandwidth, parse_seconds, parse_size

BANDWIDTH = "100Gbit"
_SIMULATED = ("sigma", "scheme", "latency", "message_time", "apply", "steps", "seed")


def capacity(
    context: typer.Context,
    graph: Annotated[
        Path | None,
        typer.Argument(metavar="GRAPH", help="Read a graph or the .json of a plan, or use --size."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Set the size of the parameters, spread evenly: 512MiB.")
    ] = None,
    workers: Annotated[
        str, typer.Option(help="Set the number of workers, or several numbers: 8,64,512.")
    ] = "8",
    servers: Annotated[
        str, typer.Option(help="Set the number of servers, or several numbers: 1,2,4.")
    ] = "1",
    bandwidth: Annotated[
        str | None,
        typer.Option(
            help="Set the bandwidth of a port per direction: 100Gbit or 12.5GB/s.  "
            f"[default: {BANDWIDTH}]"
        ),
    ] = None,
    batch: Batch = None,
    queue_pairs: Annotated[
        int,
        typer.Option(
            help="Set the queue pairs that a task has per peer: one on each port. libfabric has "
            "none: 0."
        ),
    ] = QUEUE_PAIRS_PER_PEER,
    slots: Annotated[int, typer.Option(help="Set the receive buffers per edge.")] = SLOTS_PER_EDGE,
    compute: Annotated[
        str | None,
        typer.Option(
            help="Simulate steps, in which a worker computes for this time (the median), as 80ms."
        ),
    ] = None,
    sigma: Annotated[
        float,
        typer.Option(
            help="Set the sigma of the computation's lognormal distribution: at 0.2, one of 100 "
            "computations takes 1.6 times the median."
        ),
    ] = 0.0,
    scheme: Annotated[
        str, typer.Option(help=f"Simulate this scheme: {', '.join(SCHEMES)} (no servers).")
    ] = SCHEMES[0],
    latency: Annotated[
        str, typer.Option(help="Set the latency of a message in simulated steps: 5us.")
    ] = "0us",
    message_time: Annotated[
        str, typer.Option(help="Set a port's time for each message, besides its bytes: 1us.")
    ] = "0us",
    apply: Annotated[
        str, typer.Option(help="Set a server's time to apply the gradients of one worker: 2ms.")
    ] = "0ms",
    steps: Annotated[int, typer.Option(help="Simulate this many steps of each worker.")] = STEPS,
    seed: Annotated[int, typer.Option(help="Seed the random times.")] = 0,
    measured: Annotated[
        str,
        typer.Option(
            help="Simulate steps with the --bandwidth and --compute that follow from measured "
            "steps of few workers: 4=16ms,8=27ms."
        ),
    ] = "",
    cluster: Cluster = "",
    default_device: DefaultDevice = "",
    tags: Tags = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the needs of N workers and M servers.

    Prints memory, queue pairs, bytes and time per step; with --compute or --measured also the
    distribution of simulated step times, and what bounds them.
    """
    from graph_analyzer import capacity as estimate
    from graph_analyzer.simulation import simulate

    if (graph is None) == (size is None):
        raise AnalysisError("give either a graph, or the size of the parameters with --size")
    server_counts = _numbers(servers, "--servers")
    worker_counts = _numbers(workers, "--workers")
    rate = parse_bandwidth(BANDWIDTH if bandwidth is None else bandwidth)
    median = None if compute is None else parse_seconds(compute)
    times = {"latency": latency, "message_time": message_time, "apply": apply}
    seconds = {name: parse_seconds(text) for name, text in times.items()}
    model: int | Plan
    if graph is not None:
        model = read_plan(graph, cluster, None, None, default_device, tags)
    else:
        refuse(
            "is for the analysis of a graph, and --size replaces that: omit the option, or give a "
            "graph",
            cluster=cluster,
            default_device=default_device,
            tags=tags,
        )
        model = parse_size(size or "")
        if model == 0:
            raise AnalysisError(f"--size {size}: give a size greater than 0")
    if compute is None and not measured:
        given = {each: _given(context, each) for each in _SIMULATED}
        refuse("is for simulated steps: omit it, or add --compute", **given)
    if measured:
        if bandwidth is not None or compute is not None:
            raise AnalysisError("--measured replaces --bandwidth and --compute: omit them")
        if scheme != SCHEMES[0] or sigma or len(server_counts) != 1:
            raise AnalysisError(
                f"--measured needs one number of --servers, and {SCHEMES[0]} steps without --sigma"
            )
        from graph_analyzer.calibration import calibrate

        rate, median = calibrate(model, server_counts[0], _measured(measured))
    found = [
        estimate(
            model, n, m,
            bandwidth=rate, batch=batch, queue_pairs_per_peer=queue_pairs, slots=slots,
        )
        for n, m in itertools.product(worker_counts, server_counts)
    ]  # fmt: skip
    behavior = None
    simulated = []
    if median is not None:
        behavior = Behavior(
            compute=median, sigma=sigma, scheme=scheme, steps=steps, seed=seed, **seconds
        )
        simulated = [simulate(one, behavior) for one in found]
    if as_json:
        rows: list[dict[str, Any]] = [one.as_dict() for one in found]
        for row, one in zip(rows, simulated, strict=False):
            row["simulated"] = one.as_dict()
        print_json({"version": VERSION, "capacity": rows})
        return
    from graph_analyzer.report import capacity_table, simulation_table
    from rdma_transport.tables import Fitted, make_console

    console = make_console()
    console.print(Fitted(capacity_table(found)))
    if behavior is not None:
        console.print(Fitted(simulation_table(found, simulated, behavior)))


def _given(context: typer.Context, name: str) -> Any:
    """Return the value of an option; None if it is the default."""
    source = context.get_parameter_source(name)
    return None if source is None or source.name == "DEFAULT" else context.params[name]


def _numbers(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise AnalysisError(f"{option} {text!r}: give a number, or several numbers: 8,64,512")
    return [int(part) for part in parts]


def _measured(text: str) -> dict[int, float]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(equals for _, equals, _ in pairs):
        raise AnalysisError(f"--measured {text!r}: give workers and step times: 4=16ms,8=27ms")
    return {_numbers(n, "--measured")[0]: parse_seconds(step) for n, _, step in pairs}
