"""Measures the fabric alone, between two processes: bandwidth, latency and notifications by size.

The tests are those of perftest. Bandwidth is total bytes over time, with up to 128 transfers in
flight. The latency of a notification, and of a write with its notification, is half a round trip;
that of a read is a full round trip. On shared memory a transfer is one copy, which ends at once,
and each process has a processor of its own. There, memcpy() takes turns with the fabric in the same
run: between the same two buffers, and over more memory than the caches hold. Bandwidths are medians
of several rounds. After each round all bytes are compared with those sent, and differences are
counted.

usage: python -m bench.fabric [--fabric libfabric] [--sizes '1…4MiB*2'] [--json]
       python -m bench.fabric --listen HOST:PORT     on one host,
       python -m bench.fabric --connect HOST:PORT    on the other, which prints
"""

import ctypes
import json
import select
import signal
import socket
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from rdma_transport._fabric import FabricError, Meter, UncachedCopy
from rdma_transport.command_line import FAILED, AsJson, fail, parse_place, print_json

from .report import times_of
from .support import processors, python
from .support.exit import NotAvailableError, run_command
from .support.machine import describe
from .support.meeting import listening, reach, received
from .support.options import (
    FABRIC_SIZES,
    MOST,
    SHARED_MEMORY,
    Fabric,
    Iterations,
    Most,
    Rounds,
    Sizes,
)
from .support.perftest import Other
from .support.sizes import parse_size, parse_sizes, size_name

STREAMED = 5  # transfers of a bandwidth per iteration of a latency
FEW = 8
WARM_UP = 20  # iterations
LARGEST_NOTE = 2**16
RATE_BYTES = 64
TIMEOUT = 20.0  # seconds, with a connected peer


class OtherSideError(ConnectionError):
    """The other process failed or ended."""


class GoneError(OtherSideError):
    """The other process ended."""


class Wire:
    """Lines of JSON to the other process, beside the fabric."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.connection.settimeout(TIMEOUT)
        self.rest = b""

    def tell(self, **message: Any) -> None:
        """Send a message; raise OSError if the other process is gone."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, seconds: float = TIMEOUT) -> dict[str, Any]:
        """Return the next message; raise OtherSideError if there is none, or if it is an error."""
        self.connection.settimeout(seconds)
        while b"\n" not in self.rest:
            try:
                more = self.connection.recv(65536)
            except TimeoutError:
                raise OtherSideError("the other process does not answer") from None
            except ConnectionError:
                more = b""
            if not more or len(self.rest) > 2**20:
                raise GoneError("the other process ended")
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise OtherSideError(f"the other process: {message['error']}")
        return message


def serve(wire: Wire) -> None:
    """Serve as the passive side until the other side ends."""
    try:
        wish = wire.hear()
        meter = Meter(wish["fabric"], wish["largest"])
        meter.connect(bytes.fromhex(wish["address"]), active=False)
        wire.tell(address=meter.address().hex(), device=meter.summary(), machine=describe())
        meter.introduce(TIMEOUT)
        with processors.only(_processors(meter)[1]):
            while True:
                wish = wire.hear(3 * TIMEOUT)
                meter.serve(wish["test"], wish["nbytes"], wish["iterations"], TIMEOUT)
    except GoneError:
        return
    except (FabricError, KeyError, ValueError) as error:
        wire.tell(error=str(error) or repr(error))
        raise


def _processors(meter: Meter) -> tuple[int | None, int | None]:
    """Return that of the active side, and that of the passive side; None means any."""
    both = processors.of_each() if meter.fabric() == SHARED_MEMORY else None
    return both or (None, None)


class Bench:
    """The active side. `others` take turns with it; they are set before it measures."""

    others: Sequence[Other] = ()

    def __init__(self, wire: Wire, fabric: str, largest: int, rounds: int, most: int) -> None:
        self.wire, self.rounds, self.most = wire, rounds, most
        self.wrong: Counter[tuple[str, int]] = Counter()  # bytes, by test and size
        self.meter = Meter(fabric, largest)
        wire.tell(fabric=fabric, largest=largest, address=self.meter.address().hex())
        self.peer = wire.hear()
        self.meter.connect(bytes.fromhex(self.peer["address"]), active=True)
        self.meter.introduce(TIMEOUT)
        self.uncached = UncachedCopy(largest) if self.meter.fabric() == SHARED_MEMORY else None

    def run(self, test: str, nbytes: int, iterations: int) -> list[float]:
        """Return seconds. Prefers the error that the other process reports to its effect here."""
        self.wire.tell(test=test, nbytes=nbytes, iterations=iterations)
        try:
            with processors.only(_processors(self.meter)[0]):
                seconds, wrong = self.meter.run(test, nbytes, iterations, TIMEOUT)
        except FabricError:
            if select.select([self.wire.connection], [], [], 1)[0]:
                self.wire.hear()  # raises
            raise
        self.wrong[test, nbytes] += wrong
        return seconds

    def latency(self, test: str, nbytes: int, iterations: int) -> dict[str, Any]:
        """Return the times of one latency test, in us."""
        self.run(test, nbytes, min(WARM_UP, iterations // 4 + 1))
        samples = [1e6 * sample for sample in self.run(test, nbytes, iterations)]
        return times_of(samples).as_dict() | {"iterations": len(samples)}

    def bandwidths(self, nbytes: int) -> dict[str, Callable[[int], float]]:
        """Return tests that move so many blocks of `nbytes` and return GB/s."""

        def rate(seconds: Callable[[int], float]) -> Callable[[int], float]:
            return lambda count: nbytes * count / seconds(count) / 1e9

        tests = {
            "write": rate(lambda count: sum(self.run("write_bandwidth", nbytes, count))),
            "read": rate(lambda count: sum(self.run("read_bandwidth", nbytes, count))),
        }
        if self.uncached is not None:
            uncached = self.uncached
            tests["memcpy"] = rate(lambda count: sum(self.meter.copy(nbytes, count)))
            tests["uncached_memcpy"] = rate(lambda count: uncached.run(nbytes, count))
        for other in self.others:
            for test in ("write", "read"):
                if f"{test}_bw" in other.tests:
                    tests[f"{other.name}_{test}"] = partial(_rate, other, f"{test}_bw", nbytes)
        return tests

    def row(self, nbytes: int, iterations: int) -> dict[str, Any]:
        """Return bandwidths in GB/s and latencies in microseconds."""
        most = max(self.most // nbytes, FEW)
        streamed = min(iterations * STREAMED, most)
        tests = self.bandwidths(nbytes)
        rates: dict[str, list[float]] = {name: [] for name in tests}
        for test in tests.values():
            test(min(WARM_UP, streamed // 4 + 1))
        for _ in range(self.rounds):
            for name, test in tests.items():
                rates[name].append(test(streamed))
        row: dict[str, Any] = {"bytes": nbytes, "transfers": streamed}
        row |= {f"{name}_gbps": statistics.median(values) for name, values in rates.items()}
        for name in ("write", "read"):
            row[f"{name}_wrong"] = self.wrong[f"{name}_bandwidth", nbytes]
        for name in ("write", "read", "notify"):
            if name != "notify" or nbytes <= LARGEST_NOTE:
                measured = self.latency(f"{name}_latency", nbytes, min(iterations, most))
                measured["wrong"] = self.wrong[f"{name}_latency", nbytes]
                row[f"{name}_us"] = measured
            for other in self.others:
                if f"{name}_lat" in other.tests:
                    figures = other.measure(f"{name}_lat", nbytes, min(iterations, most))
                    row[f"{other.name}_{name}_us"] = figures.p50
        return row

    def notifications(self, iterations: int) -> float:
        """Return the number of notifications of RATE_BYTES per second."""
        count = max(iterations * STREAMED, FEW)
        self.run("notify_rate", RATE_BYTES, WARM_UP)
        return statistics.median(
            count / sum(self.run("notify_rate", RATE_BYTES, count)) for _ in range(self.rounds)
        )

    def report(
        self, sizes: list[int], iterations: int, track: Callable[..., Iterable[int]] = track
    ) -> dict[str, Any]:
        """Measure all sizes, in bytes; raise FabricError or OtherSideError."""
        return {
            "machine": describe(),
            "peer_machine": self.peer["machine"],
            "fabric": self.meter.fabric(),
            "route": self.meter.route(),
            "device": self.meter.summary(),
            "peer_device": self.peer["device"],
            "iterations": iterations,
            "rows": [self.row(size, iterations) for size in track(sizes, "measuring")],
            "notifications_per_second": self.notifications(iterations),
            "notifications_wrong": self.wrong["notify_rate", RATE_BYTES],
            "wrong": self.wrong.total(),
        }


def _rate(other: Other, test: str, nbytes: int, count: int) -> float:
    return other.measure(test, nbytes, count).gbps


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report as a table."""
    console.width = max(console.width, 100)
    ends = {"here": ("machine", "device"), "peer": ("peer_machine", "peer_device")}
    for name, (machine, device) in ends.items():
        console.print(f"{name}: {report[machine]}", highlight=False)
        console.print(f"      {report[device]}", highlight=False)
    console.print(f"fabric: {report['fabric']}, {report['route']}")
    kinds = "write, notify: half of a round trip; read: a whole one"
    table = Table(title=f"{report['iterations']} iterations; {kinds}")
    headings = ["size", "write\nGB/s", "read\nGB/s"]
    if report["fabric"] == SHARED_MEMORY:
        headings += ["memcpy\nGB/s", "uncached\nGB/s"]
    headings += ["write\np50 us", "\np99 us", "read\np50 us", "\np99 us"]
    headings += ["notify\np50 us", "\np99 us"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in report["rows"]:
        names = ("write", "read", "memcpy", "uncached_memcpy")
        rates = [row.get(f"{name}_gbps") for name in names]
        cells = [f"{rate:.2f}" for rate in rates if rate is not None]
        for name in ("write", "read", "notify"):
            latency = row.get(f"{name}_us")
            known = [latency and latency[part] for part in ("p50", "p99")]
            cells += ["-" if time is None else f"{time:.4g}" for time in known]
        table.add_row(size_name(row["bytes"]), *cells)
    console.print(table)
    console.print(
        f"notifications of {RATE_BYTES} bytes: "
        f"{report['notifications_per_second'] / 1e6:.2f} million per second. "
        f"write: with its notification."
    )
    console.print(f"bytes that differ from those sent: {report['wrong']}")


@contextmanager
def own_peer() -> Iterator[Wire]:
    """Start a serving process on this host; end it with the context."""
    here, there = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, *python.module("fabric"), "--serve", str(there.fileno())],
        pass_fds=[there.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=python.TOP,
        process_group=0,  # Ctrl-C is for the parent, which ends it
    )
    there.close()
    try:
        with here:
            yield Wire(here)
    finally:
        process.kill()
        process.wait()


@contextmanager
def opened(
    wire: Wire, fabric: str, sizes: Sequence[int], rounds: int, most: int
) -> Iterator[Bench]:
    """Connect to the serving process; raise NotAvailableError if no fabric connects the two."""
    try:
        bench = Bench(wire, fabric, max(*sizes, RATE_BYTES), rounds, most)
    except GoneError:
        raise
    except (FabricError, OtherSideError) as error:
        raise NotAvailableError(str(error)) from error
    with closing(bench.meter):
        yield bench


def listen(host: str, port: int, seconds: float) -> None:
    """Serve the first process that connects."""
    with listening(host, port) as server, received(server, seconds) as connection:
        serve(Wire(connection))


@contextmanager
def connected(host: str, port: int, seconds: float) -> Iterator[Wire]:
    """Connect to the process that listens there, as soon as it does."""
    with reach(host, port, seconds) as connection:
        yield Wire(connection)


def main(
    fabric: Fabric = "",
    sizes: Sizes = FABRIC_SIZES,
    iterations: Iterations = 1000,
    rounds: Rounds = 5,
    most: Most = MOST,
    as_json: AsJson = False,
    listen_on: Annotated[
        str, typer.Option("--listen", help="Serve a --connect on HOST:PORT.")
    ] = "",
    connect_to: Annotated[
        str, typer.Option("--connect", help="Connect to a --listen at HOST:PORT.")
    ] = "",
    wait: Annotated[float, typer.Option(help="Wait this many seconds for the other side.")] = 60,
    serve_on: Annotated[int, typer.Option("--serve", hidden=True)] = -1,
) -> None:
    """Measure the fabric between two processes."""
    if listen_on and connect_to:
        raise typer.BadParameter("give either --listen or --connect", param_hint="--listen")
    wanted, bytes_at_most = parse_sizes(sizes), parse_size(most)
    if serve_on >= 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not without its parent
        return serve(Wire(socket.socket(fileno=serve_on)))
    if listen_on:
        return listen(*parse_place(listen_on, "--listen"), wait)
    peer = connected(*parse_place(connect_to, "--connect"), wait) if connect_to else own_peer()
    with peer as wire, opened(wire, fabric, wanted, rounds, bytes_at_most) as bench:
        console = Console(stderr=True, quiet=as_json)
        report = bench.report(wanted, iterations, partial(track, console=console))
    if as_json:
        print_json(report)
    else:
        show(report, Console())
    if report["wrong"]:
        fail(f"{report['wrong']} bytes differ from those sent", FAILED)


if __name__ == "__main__":
    run_command(main)
