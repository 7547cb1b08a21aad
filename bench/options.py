"""The options that benchmarks share, and how a function becomes a command or a program."""

import functools
import inspect
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rdma_transport.command_line import AsJson, check_output, output

from .support.options import Fabric, Hosts, Veth, parse_hosts
from .support.python import PACKAGE
from .where import Measure, Where

if TYPE_CHECKING:
    from .runner import Asked

Plot = Annotated[Path | None, output("Draw the results to this .png or .svg file.")]


def _command() -> str:
    """Return the command line, by the name that works everywhere."""
    words = sys.argv[1:]
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.startswith(f"{PACKAGE}.") and "__main__" not in spec.name:
        return " ".join(["python", "-m", spec.name, *words])
    return " ".join(["rdma-transport", "bench", *(words[1:] if words[:1] == ["bench"] else words)])


def _check_plot(path: Path) -> None:
    check_output(path, ".png", ".svg")
    if find_spec("matplotlib") is None:
        raise typer.BadParameter(
            "matplotlib is not installed. Install it: pip install matplotlib", param_hint="--output"
        )


def _asked(
    fabric: str = "",
    hosts: str = "",
    role: int = 0,
    connect_timeout: float = 60.0,
    as_json: bool = False,
    plot: Path | None = None,
    protocols: tuple[str, ...] = (),
    veth: str = "",
    in_turn: bool = False,
) -> "Asked":
    from .runner import Asked

    if plot is not None:
        _check_plot(plot)
    if hosts and veth:
        raise typer.BadParameter("not together with --hosts", param_hint="--veth")
    places = parse_hosts(hosts, role)
    where = Where(protocols, fabric)
    return Asked(_command(), where, places, role, connect_timeout, as_json, plot, veth, in_turn)


Role = Annotated[int, typer.Option(min=0, help="Set the role of this host; 0 measures.")]
Timeout = Annotated[
    float,
    typer.Option(min=0, help="Wait this many seconds for the other hosts; then exit with code 4."),
]


def alone(
    fabric: Fabric = "",
    hosts: Hosts = "",
    role: Role = 0,
    connect_timeout: Timeout = 60.0,
    as_json: AsJson = False,
    plot: Plot = None,
    protocols: tuple[str, ...] = (),
) -> "Asked":
    """Options of all commands. Raises typer.BadParameter for an invalid value."""
    return _asked(fabric, hosts, role, connect_timeout, as_json, plot, protocols)


def between(
    veth: Veth = "",
    hosts: Hosts = "",
    role: Role = 0,
    connect_timeout: Timeout = 60.0,
    as_json: AsJson = False,
    plot: Plot = None,
    protocols: tuple[str, ...] = ("grpc", "rdma"),
    in_turn: bool = False,
) -> "Asked":
    """Options of programs that measure gRPC and rdma, here, between hosts or namespaces."""
    return _asked("", hosts, role, connect_timeout, as_json, plot, protocols, veth, in_turn)


def both(
    as_json: AsJson = False, plot: Plot = None, protocols: tuple[str, ...] = ("grpc", "rdma")
) -> "Asked":
    """Options of programs that measure gRPC and rdma on this host."""
    return _asked(as_json=as_json, plot=plot, protocols=protocols)


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
) -> Callable[[Callable[..., Measure]], Callable[..., None]]:
    """Make a command from a function that returns a `Measure`.

    The command has the options of the function, and those of `options`.
    """

    def decorate(function: Callable[..., Measure]) -> Callable[..., None]:
        own = inspect.signature(function).parameters
        shared = dict(inspect.signature(options).parameters)
        if shared.pop("values", None):
            shared |= inspect.signature(alone).parameters
        for fixed in ("protocols", "in_turn"):
            shared.pop(fixed, None)

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
