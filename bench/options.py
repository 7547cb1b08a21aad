"""The options that all benchmark commands share."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rdma_transport.command_line import AsJson, check_output, output

from .support.options import Fabric, Hosts, parse_hosts

if TYPE_CHECKING:
    from .benchmarks import Where
    from .report import Result
    from .runner import Asked, Measure


Plot = Annotated[Path | None, output("Draw the results to this .png or .svg file.")]


def _command() -> str:
    """Return the command line, by the name that works everywhere."""
    words = sys.argv[1:]
    return " ".join(["rdma-transport", "bench", *(words[1:] if words[:1] == ["bench"] else words)])


def _check_plot(path: Path) -> None:
    check_output(path, ".png", ".svg")
    if find_spec("matplotlib") is None:
        raise typer.BadParameter(
            "matplotlib is not installed. Install it: pip install matplotlib", param_hint="--output"
        )


def alone(
    fabric: Fabric = "",
    hosts: Hosts = "",
    role: Annotated[int, typer.Option(min=0, help="Set the role of this host; 0 measures.")] = 0,
    connect_timeout: Annotated[
        float,
        typer.Option(
            min=0, help="Wait this many seconds for the other hosts; then exit with code 4."
        ),
    ] = 60.0,
    as_json: AsJson = False,
    plot: Plot = None,
    protocols: tuple[str, ...] = (),
) -> "Asked":
    """Options of all commands. Raises typer.BadParameter for an invalid value."""
    from .benchmarks import Where
    from .runner import Asked

    if plot is not None:
        _check_plot(plot)
    places = parse_hosts(hosts, role)
    where = Where(protocols, fabric)
    return Asked(_command(), where, places, role, connect_timeout, as_json, plot)


def here(fabric: Fabric = "", as_json: AsJson = False, plot: Plot = None) -> "Asked":
    """Options of commands that measure this host only."""
    return alone(fabric=fabric, as_json=as_json, plot=plot)


def beside_grpc(
    protocol: Annotated[
        Literal["rdma", "grpc"], typer.Option(help="Set the protocol of the tasks.")
    ] = "rdma",
    compare: Annotated[
        Literal["none", "grpc"],
        typer.Option(help="Measure gRPC too, in turns in the same run, and print the ratio."),
    ] = "none",
    **values: Any,
) -> "Asked":
    """Options of all commands that start TensorFlow tasks."""
    wanted = dict.fromkeys(name for name in (compare, protocol) if name != "none")
    return alone(**values, protocols=tuple(wanted))


def performed(
    options: Callable[..., "Asked"],
) -> Callable[[Callable[..., "Measure"]], Callable[..., None]]:
    """Make a command from a function that returns a `Measure`.

    The command has the options of the function, and those of `options`.
    """

    def decorate(function: Callable[..., "Measure"]) -> Callable[..., None]:
        own = inspect.signature(function).parameters
        shared = dict(inspect.signature(options).parameters)
        if shared.pop("values", None):
            shared |= inspect.signature(alone).parameters
        shared.pop("protocols", None)

        @functools.wraps(function)
        def command(**values: Any) -> None:
            from .runner import perform

            measure = function(**{option: values.pop(option) for option in own})
            perform(options(**values), measure)

        parameters = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in (*own.values(), *shared.values())
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


def once(measure: Callable[["Where"], "Result"]) -> "Measure":
    """Return a `Measure` with one result."""

    def results(where: "Where") -> "Iterator[Result]":
        yield measure(where)

    return results
