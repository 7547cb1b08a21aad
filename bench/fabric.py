"""Measures the fabric alone, between two processes: bandwidth, latency and notifications by size.

The tests are those of perftest. Bandwidth is total bytes over time, with up to 128 transfers in
flight. The latency of a notification, and of a write with its notification, is half a round trip;
that of a read is a full round trip. On shared memory a transfer is one copy, which ends at once,
and each process has a processor of its own. There, memcpy() takes turns with the fabric in the same
run: between the same two buffers, and over more memory than the caches hold. Bandwidths are medians
of several rounds. After each round all bytes are compared with those sent, and differences are
counted.

usage: python -m bench.fabric SOCKET    serves the measuring process, which holds the other end
"""

import ctypes
import select
import signal
import socket
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from rdma_transport._fabric import FabricError, Meter, UncachedCopy
from rdma_transport.json_lines import GoneError, OtherSideError, Wire

from .report import GB, Result, Row, Times, times_of
from .support import processors, python, ucx
from .support.exit import NotAvailableError, run_command
from .support.options import SHARED_MEMORY
from .support.sizes import size_name
from .where import Where

STREAMED = 5  # transfers of a bandwidth per iteration of a latency
FEW = 8
WARM_UP = 20  # iterations
LARGEST_NOTE = 2**16
RATE_BYTES = 64
TIMEOUT = 20.0  # seconds, with a connected peer
TITLE = "one-sided operations between two processes; read_lat: a round trip, other latencies: half"


def serve(wire: Wire) -> None:
    """Serve as the passive side until the other side ends."""
    try:
        wish = wire.hear()
        meter = Meter(wish["fabric"], wish["largest"])
        meter.connect(bytes.fromhex(wish["address"]), active=False)
        wire.tell(address=meter.address().hex(), device=meter.summary())
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
    """The active side; if `beside_ucx`, UCX takes turns with it."""

    beside_ucx = False

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

    def bandwidths(self, nbytes: int) -> dict[tuple[str, str], Callable[[int], float]]:
        """Return tests that move so many blocks of `nbytes` and return GB/s, by test and whose."""

        def rate(seconds: Callable[[int], float]) -> Callable[[int], float]:
            return lambda count: nbytes * count / seconds(count) / GB

        ours = self.meter.fabric()
        tests = {
            ("write_bw", ours): rate(lambda count: sum(self.run("write_bandwidth", nbytes, count))),
            ("read_bw", ours): rate(lambda count: sum(self.run("read_bandwidth", nbytes, count))),
        }
        if self.uncached is not None:
            uncached = self.uncached
            tests["memcpy", "cpu"] = rate(lambda count: sum(self.meter.copy(nbytes, count)))
            tests["uncached_memcpy", "cpu"] = rate(lambda count: uncached.run(nbytes, count))
        if self.beside_ucx:
            for test in ("write_bw", "read_bw"):
                tests[test, "ucx"] = partial(_ucx_rate, test, nbytes)
        return tests

    def rows(self, nbytes: int, iterations: int) -> Iterator[Row]:
        """Yield the bandwidths and the latencies of a size."""
        most, ours = max(self.most // nbytes, FEW), self.meter.fabric()
        streamed, count = min(iterations * STREAMED, most), min(iterations, most)
        moves, named = self.bandwidths(nbytes), (size_name(nbytes), nbytes)
        for move in moves.values():
            move(min(WARM_UP, streamed // 4 + 1))
        taken = [{name: move(streamed) for name, move in moves.items()} for _ in range(self.rounds)]
        rates = {name: statistics.median(each[name] for each in taken) for name in moves}
        for (test, whose), gbps in rates.items():
            row = Row(test, *named, whose, streamed, gbps=gbps, per_second=gbps * GB / nbytes)
            if whose == ours:
                wrong = self.wrong[test.replace("_bw", "_bandwidth"), nbytes]
                other = rates.get((test, "ucx"))
                row = replace(row, wrong=wrong, ratio=gbps / other if other else None)
            yield row
        for test in ("write", "read", "notify"):
            theirs = None
            if self.beside_ucx and f"{test}_lat" in ucx.TESTS:
                theirs = Times(ucx.measure(f"{test}_lat", nbytes, count).p50)
            if test != "notify" or nbytes <= LARGEST_NOTE:
                times, wrong = self.latency(f"{test}_latency", nbytes, count)
                ratio = theirs.p50 / times.p50 if theirs and times.p50 else None
                yield Row(f"{test}_lat", *named, ours, count, times, wrong=wrong, ratio=ratio)
            if theirs is not None:
                yield Row(f"{test}_lat", *named, "ucx", count, theirs)

    def latency(self, test: str, nbytes: int, iterations: int) -> tuple[Times, int]:
        """Return the times of one latency test, and wrong bytes."""
        self.run(test, nbytes, min(WARM_UP, iterations // 4 + 1))
        times = times_of([1e6 * sample for sample in self.run(test, nbytes, iterations)])
        return times, self.wrong[test, nbytes]

    def notifications(self, iterations: int) -> Row:
        """Return the number of notifications of RATE_BYTES per second."""
        count = max(iterations * STREAMED, FEW)
        self.run("notify_rate", RATE_BYTES, WARM_UP)
        rate = statistics.median(
            count / sum(self.run("notify_rate", RATE_BYTES, count)) for _ in range(self.rounds)
        )
        named = "notify_rate", size_name(RATE_BYTES), RATE_BYTES, self.meter.fabric(), count
        return Row(*named, per_second=rate, wrong=self.wrong["notify_rate", RATE_BYTES])


def _ucx_rate(test: str, nbytes: int, count: int) -> float:
    return ucx.measure(test, nbytes, count).gbps


def fabric(
    where: Where,
    sizes: Sequence[int],
    iterations: int = 1000,
    rounds: int = 5,
    most: int = 2**28,
    beside_ucx: bool = False,
) -> Result:
    """Rows of the fabric alone, between two processes: bandwidths, latencies, notifications.

    `beside_ucx`: and of UCX through shared memory, in the same run, with which ratios compare.
    """
    options = {"iterations": iterations, "rounds": rounds, "most": most}
    if beside_ucx and (why := ucx.missing()):
        raise NotAvailableError(why)
    result = Result("fabric", TITLE, options, "gbps", against="UCX")
    with ExitStack() as stack:
        if where.others:
            wire = Wire(stack.enter_context(where.others[-1].ask("fabric")), TIMEOUT)
        else:
            wire = stack.enter_context(own_peer())
        bench = stack.enter_context(opened(wire, where.fabric, sizes, rounds, most))
        ours = bench.meter.fabric()
        if beside_ucx and ours != SHARED_MEMORY:
            raise NotAvailableError(
                f"UCX is measured through shared memory, and this is {ours}. Use --fabric shm on "
                "one host"
            )
        bench.beside_ucx = beside_ucx
        for size in where.bar.track(sizes, "measuring"):
            result.rows += bench.rows(size, iterations)
        result.rows.append(bench.notifications(iterations))
        route = {"transport": ours, "reason": bench.meter.route()}
        result.routes = [{"from": "this host", "to": "the peer"} | route]
        result.devices = [bench.meter.summary(), bench.peer["device"]]
    result.notes.append(
        "write_lat: a write with its notification. #wrong: bytes that differ after each round."
    )
    if ours == SHARED_MEMORY:
        result.notes.append("uncached_memcpy: over more memory than the caches hold.")
    if beside_ucx:
        result.notes.append(f"UCX {ucx.version()} over {ucx.TRANSPORTS}, by {ucx.PROGRAM}.")
    return result


@contextmanager
def own_peer() -> Iterator[Wire]:
    """Start a serving process on this host; end it with the context."""
    here, there = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, *python.module("fabric"), str(there.fileno())],
        pass_fds=[there.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=python.TOP,
        process_group=0,  # Ctrl-C is for the parent, which ends it
    )
    there.close()
    try:
        with here:
            yield Wire(here, TIMEOUT)
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


def main(socket_number: Annotated[int, typer.Argument(metavar="SOCKET")]) -> None:
    """Serve the process at the other end of an open socket; `rdma-transport bench` starts this."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not without its parent
    serve(Wire(socket.socket(fileno=socket_number), TIMEOUT))


if __name__ == "__main__":
    run_command(main)
