"""Runs a benchmark of the command line, prints its results, and ends the process.

The benchmark runs in a thread, because the main thread must receive Ctrl-C while TensorFlow waits
for a peer. The process ends with `os._exit` (see `bench.support.exit`) and one of the exit codes
below.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rdma_transport.command_line import FAILED, NOT_AVAILABLE
from rdma_transport.wheels import refusal

from .report import Result, as_json
from .support import agent
from .support.exit import NotAvailableError, UnwritableError, guarded, leave, say
from .support.hosts import across, reached
from .support.machine import facts
from .support.progress import shown
from .where import Measure, Where


@dataclass(frozen=True)
class Asked:
    """The options that all benchmarks share."""

    command: str
    where: Where
    hosts: tuple[tuple[str, int], ...] = ()
    role: int = 0
    connect_timeout: float = 60.0
    json: bool = False
    plot: Path | None = None
    veth: str = ""  # the congestion control between two namespaces; empty: this host
    in_turn: bool = False  # workers are on the two namespaces in turn, or on the first


def perform(asked: Asked, measure: Measure) -> None:
    """Measure and print, or serve the host that measures. Ends the process."""
    if asked.role:
        host, port = asked.hosts[asked.role]
        leave(lambda: guarded(lambda: agent.wait(host, port, asked.connect_timeout, say)))
    else:
        leave(lambda: guarded(lambda: _interruptible(lambda: _measured(asked, measure))))


def _measured(asked: Asked, measure: Measure) -> int:
    if asked.where.protocols and (why := refusal()):
        raise NotAvailableError(f"{why}. 'bench fabric' and 'bench collectives' need no TensorFlow")
    results, machines = [], [facts()]
    with ExitStack() as stack:
        where = asked.where
        if asked.hosts:
            say("connecting to " + ", ".join(f"{host}:{port}" for host, port in asked.hosts[1:]))
            others = stack.enter_context(reached(asked.hosts[1:], asked.connect_timeout))
            machines += [other.machine for other in others]
            layout = across(asked.hosts[0], others)
            where = replace(where, others=tuple(others), layout=layout)
        if asked.veth:
            from .support.namespaces import measured_between

            here = stack.enter_context(measured_between(asked.veth, asked.in_turn))
            where = replace(where, layout=here)
        _print_header(asked, machines)
        for result in _with_a_bar(where, measure):
            results.append(result)
            _judge(result)
            _print_result(asked, result)
    if asked.json:
        _print(as_json(machines, asked.command, results))
    if asked.plot is not None:
        from .plot import draw
        from .table import header

        try:
            caption = [line[2:] for line in header(machines, asked.command)]
            drawn = draw(results, asked.plot, caption)
        except OSError as error:
            raise UnwritableError(error, str(asked.plot)) from None
        say(f"drew {asked.plot}" if drawn else "drew nothing: there are no figures by size")
    return _code(results)


def _with_a_bar(where: Where, measure: Measure) -> Iterator[Result]:
    """Yield the results; the progress bar is hidden while one is printed."""
    with shown() as (bar, hidden):
        measured = measure(replace(where, bar=bar))
        for result in [measured] if isinstance(measured, Result) else measured:
            with hidden():
                yield result


def _judge(result: Result) -> None:
    """Record problems that make the result invalid."""
    if result.wrong:
        result.problems.append(f"{result.wrong} values differ from those that were sent")
    grpc, total = result.by_grpc
    if grpc:
        why = "; ".join(f"{reason} ({count})" for reason, count in result.reasons.items())
        result.problems.append(
            f"{grpc} of {total} bytes fell back from rdma to gRPC: {why or 'no reason reported'}"
        )
        result.fallback = True


def _code(results: list[Result]) -> int:
    for result in results:
        for problem in result.problems:
            say(f"error: {result.benchmark}: {problem}")
    if any(result.wrong for result in results):
        return FAILED
    if any(result.fallback for result in results):
        return NOT_AVAILABLE
    return FAILED if any(result.problems for result in results) else 0


def _print_header(asked: Asked, machines: list[dict[str, Any]]) -> None:
    if not asked.json:
        from rdma_transport.tables import make_console

        from .table import header

        with _writing():
            for line in header(machines, asked.command):
                make_console().print(line)


def _print_result(asked: Asked, result: Result) -> None:
    if not asked.json:
        from rdma_transport.tables import Fitted, make_console

        from .table import details, table

        out = make_console()
        with _writing():
            out.print()
            out.print(Fitted(table(result)))
            for line in details(result):
                out.print(line)


def _print(text: str) -> None:
    with _writing():
        sys.stdout.write(text + "\n")


@contextmanager
def _writing() -> Iterator[None]:
    """Raise UnwritableError if standard output cannot be written."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # what is left in it goes nowhere
        raise UnwritableError(error) from None


def _interruptible(work: Callable[[], int]) -> int:
    """Run `work` in a thread. Ctrl-C does not wait for it, but ends its child processes."""
    ended = threading.Event()
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not ended.wait(3600):
            pass
    except KeyboardInterrupt:
        _end_children()
        if sys.stderr.isatty():
            say("")  # below the bar
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    code: int = outcome[0]
    return code


def _end_children() -> None:
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
