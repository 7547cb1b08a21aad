"""Runs a benchmark of the command line, prints its results, and ends the process.

The benchmark runs in a thread, because the main thread must receive Ctrl-C while TensorFlow waits
for a peer. The process ends with `os._exit` (see `bench.support.exit`) and one of the exit codes
below.
"""

import errno
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rdma_transport._fabric import FabricError

from .benchmarks import NotAvailableError, Where
from .report import Result, as_json
from .support import agent
from .support.cluster import NotStartedError
from .support.exit import INTERRUPTED, leave
from .support.hosts import Here, There, spread
from .support.machine import facts
from .support.meeting import NobodyCameError
from .support.progress import shown

OK, FAILED, BAD_INPUT, NOT_AVAILABLE, NOBODY_CAME = 0, 1, 2, 3, 4
LOG_LINES = 10
Measure = Callable[[Where], Iterable[Result]]


class UnwritableError(Exception):
    """The results cannot be written."""

    def __init__(self, cause: OSError, what: str = "the answer") -> None:
        super().__init__(f"cannot write {what}: {cause.strerror or cause}")
        self.cause = cause


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


def perform(asked: Asked, measure: Measure) -> None:
    """Measure and print, or serve the host that measures. Ends the process."""
    if asked.role:
        host, port = asked.hosts[asked.role]
        leave(lambda: _guarded(lambda: agent.wait(host, port, asked.connect_timeout, _say)))
    else:
        leave(lambda: _guarded(lambda: _interruptible(lambda: _measured(asked, measure))))


def _measured(asked: Asked, measure: Measure) -> int:
    if asked.where.protocols and find_spec("tensorflow") is None:
        raise NotAvailableError(
            f"{sys.executable} has no TensorFlow, which all commands but 'bench fabric' need. "
            "Install it: pip install 'tensorflow==2.21.*'"
        )
    results, machines = [], [facts()]
    with ExitStack() as stack:
        where = asked.where
        if asked.hosts:
            _say("connecting to " + ", ".join(f"{host}:{port}" for host, port in asked.hosts[1:]))
            others = [_other(stack, *host, asked.connect_timeout) for host in asked.hosts[1:]]
            machines += [other.machine for other in others]
            layout = spread([Here(*asked.hosts[0]), *others])
            where = replace(where, others=tuple(others), layout=layout)
        _print_header(asked, machines)
        for result in _with_a_bar(where, measure):
            results.append(result)
            _judge(result)
            _print_result(asked, result)
    if asked.json:
        _print(as_json(machines, asked.command, results))
    if asked.plot is not None:
        from .plot import draw

        try:
            draw(results, asked.plot)
        except OSError as error:
            raise UnwritableError(error, str(asked.plot)) from None
        _say(f"drew {asked.plot}")
    return _code(results)


def _other(stack: ExitStack, host: str, port: int, seconds: float) -> There:
    other = There(host, port, seconds)
    stack.callback(other.end)
    return other


def _with_a_bar(where: Where, measure: Measure) -> Iterator[Result]:
    """Yield the results; the progress bar is hidden while one is printed."""
    with shown() as (bar, hidden):
        for result in measure(replace(where, bar=bar)):
            with hidden():
                yield result


def _judge(result: Result) -> None:
    """Record problems that make the result invalid."""
    if result.wrong:
        result.problems.append(f"{result.wrong} values differ from those that were sent")
    grpc, total = result.by_grpc
    if grpc and not result.options.get("serialized"):
        why = "; ".join(f"{reason} ({count})" for reason, count in result.reasons.items())
        result.problems.append(
            f"{grpc} of {total} bytes fell back from rdma to gRPC: {why or 'no reason reported'}"
        )
        result.fallback = True


def _code(results: list[Result]) -> int:
    for result in results:
        for problem in result.problems:
            _say(f"error: {result.benchmark}: {problem}")
    if any(result.wrong for result in results):
        return FAILED
    if any(result.fallback for result in results):
        return NOT_AVAILABLE
    return FAILED if any(result.problems for result in results) else OK


def _print_header(asked: Asked, machines: list[dict[str, Any]]) -> None:
    if not asked.json:
        from .table import console, header

        with _writing():
            for line in header(machines, asked.command):
                console().print(line)


def _print_result(asked: Asked, result: Result) -> None:
    if not asked.json:
        from .table import console, details, table

        out = console()
        with _writing():
            out.print()
            out.print(table(result))
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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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
            _say("")  # below the bar
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    code: int = outcome[0]
    return code


def _end_children() -> None:
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def _guarded(work: Callable[[], int | None]) -> int:
    """Return the exit code of `work`; print errors to standard error."""
    try:
        return work() or OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except UnwritableError as error:
        if error.cause.errno == errno.EPIPE:  # the reader closed the pipe
            return FAILED
        return _failed(BAD_INPUT, str(error))
    except NotAvailableError as error:
        return _failed(NOT_AVAILABLE, f"not available: {error}")
    except (NobodyCameError, TimeoutError) as error:
        return _failed(NOBODY_CAME, str(error))
    except NotStartedError as error:
        return _not_started(error)
    except (FabricError, OSError, EOFError, RuntimeError, agent.LostError) as error:
        return _failed(FAILED, str(error))
    except Exception as error:
        if type(error).__module__.startswith("tensorflow"):
            return _failed(FAILED, " ".join(f"{type(error).__name__}: {error}".split())[:600])
        traceback.print_exc()
        return FAILED


def _not_started(error: NotStartedError) -> int:
    if "No server factory registered" in error.message:
        why = "install rdma_transport there, and unset RDMA_TRANSPORT_DISABLE"
        return _failed(NOT_AVAILABLE, f"{error.task} runs without the plugin: {why}")
    port_in_use = error.error == "UnknownError"
    return _failed(FAILED if port_in_use else NOT_AVAILABLE, str(error))


def _failed(code: int, text: str) -> int:
    """Print the first line, and the last lines of a log below it."""
    first, *log = text.splitlines() or ["no reason was given"]
    log = [line for line in log if not re.match(r"I\d{4} |WARNING: All log messages", line)]
    _say("\n".join([f"error: {first}", *log[-LOG_LINES:]]))
    return code
