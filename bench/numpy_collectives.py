"""Measures collectives and messages of NumPy arrays between processes of this host.

Each round starts the ranks of each system anew, in turns. If there are as many processors as ranks,
each rank keeps to one, except for `iall_reduce`. A time is that of rank 0, from when it leaves a
barrier. `round_trip` is a message there and back, `in_flight` 64 messages from rank 0 to rank 1
and their acknowledgment. Over gRPC, a time is that of TensorFlow's ring, as in
``bench.collectives``.
"""

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .report import Result, Row, bus_gbps, times_of
from .support.exit import NotAvailableError
from .support.mpi import find_mpi, mpirun_words
from .support.sizes import size_name
from .where import Where

OPS = (
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"),
    "iall_reduce",
    *("round_trip", "in_flight"),  # messages between ranks 0 and 1
)
IN_FLIGHT = 64  # messages
# Messages that move in the time of a row.
MESSAGES = {"round_trip": 2, "in_flight": IN_FLIGHT}
OTHERS = {"mpi": "MPI", "grpc": "gRPC"}  # what can be measured beside
TIMEOUT = 600.0  # seconds, for one round of one system
_RANK = Path(__file__).parent / "support" / "numpy_rank.py"


def find_others(systems: Iterable[str]) -> dict[str, str]:
    """Return why each of the other systems cannot be measured; empty texts for those that can."""
    found = {}
    for system in systems:
        if system == "mpi":
            _, found[system] = find_mpi()
        elif system == "grpc":
            missing = find_spec("tensorflow") is None
            found[system] = "TensorFlow is not installed" if missing else ""
    return found


def command(system: str, ranks: int, mpirun: str) -> list[str]:
    """Return the command that starts the ranks of a system."""
    if system != "mpi":
        return [sys.executable, "-m", "rdma_transport", "run", "-n", str(ranks), "--"]
    # The ranks of both systems take their processors themselves (bench.support.numpy_rank).
    return [*mpirun_words(mpirun, ranks), "--bind-to", "none"]


@dataclass(frozen=True)
class Job:
    """What one run of the ranks of a system measures."""

    ops: Sequence[str]
    sizes: Sequence[int]
    ranks: int
    iterations: int
    environment: dict[str, str]


def measure(
    systems: Sequence[str],
    job: Job,
    rounds: int,
    track: Callable[..., Iterable[Any]],
) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return samples in microseconds and wrong values, by system, collective and bytes.

    Raise ``NotAvailableError`` if a system does not run.
    """
    rows: dict[tuple[str, str, int], dict[str, Any]] = defaultdict(
        lambda: {"us": [], "wrong": 0, "overlap": []}
    )
    turns = [(number, system) for number in range(rounds) for system in systems]
    for _, system in track(turns, "measuring"):
        for row in _over_grpc(job) if system == "grpc" else _over_ranks(system, job):
            into = rows[system, row["op"], row["bytes"]]
            into["us"] += row["us"]
            into["wrong"] += row["wrong"]
            into["overlap"] += [row["overlap"]] if "overlap" in row else []
    return dict(rows)


def _over_ranks(system: str, job: Job) -> list[dict[str, Any]]:
    """Run all ranks of a system once; return the rows of rank 0."""
    mpirun, _ = find_mpi()
    words = [*command(system, job.ranks, mpirun), sys.executable, str(_RANK), system]
    words += [",".join(job.ops), ",".join(map(str, job.sizes)), str(job.iterations)]
    try:
        ran = subprocess.run(
            words,
            env=os.environ | job.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError(f"{system} did not end within {TIMEOUT:g} s") from None
    found = ran.stdout.partition("[{")
    if ran.returncode != 0 or not found[1]:
        why = (ran.stderr.strip() or "no result").splitlines()[-1]
        raise NotAvailableError(f"{system} failed: {why}")
    rows: list[dict[str, Any]] = json.loads("[{" + found[2].splitlines()[0])
    return rows


def _over_grpc(job: Job) -> list[dict[str, Any]]:
    """Run TensorFlow's collectives; each sample is the mean of several."""
    from .support.collective_cluster import OPS as OFFERED
    from .support.collective_cluster import CollectiveCluster

    rows = []
    with CollectiveCluster(job.ranks, "grpc", job.environment) as cluster:
        for op in (op for op in job.ops if op in OFFERED):
            for size in job.sizes:
                # TensorFlow's sizes are those of the larger array.
                size_there = size * (job.ranks if op in ("all_gather", "all_to_all") else 1)
                cluster.warm_up(op, size_there)
                repeat = max(3, min(20, job.iterations // 50))
                samples = [max(cluster.time(op, size_there)[0], 0) for _ in range(repeat)]
                rows.append({"op": op, "bytes": size, "us": samples, "wrong": 0})
    return rows


def collectives(
    where: Where,
    systems: Sequence[str],
    ops: Sequence[str],
    sizes: Sequence[int],
    ranks: int = 2,
    iterations: int = 1000,
    rounds: int = 3,
) -> Result:
    """Rows of collectives of NumPy arrays, by system: rdma, registered, mpi and grpc.

    Ratios compare with MPI, or else with gRPC.
    """
    options = {"ranks": ranks, "iterations": iterations, "rounds": rounds}
    title = f"collectives of float32 arrays, {ranks} ranks on this host"
    result = Result("collectives", title, options, "p50")
    missing = find_others(systems)
    others = [system for system in OTHERS if missing.get(system) == ""]
    for system, why in missing.items():
        if why:
            result.notes.append(f"{OTHERS[system]} was skipped: {why}.")
    systems = [system for system in systems if not missing.get(system)]
    job = Job(ops, sizes, ranks, iterations, where.environment)
    measured = measure(systems, job, rounds, where.bar.track)
    for (system, op, size), row in sorted(measured.items(), key=lambda item: item[0][1:]):
        times = times_of(row["us"])
        moved = size * MESSAGES.get(op, 1)
        gbps = moved / times.p50 / 1e3 if size and times.p50 else None
        other = measured.get((others[0], op, size)) if others else None
        result.rows.append(
            Row(
                test=op,
                name=size_name(size),
                bytes=size,
                protocol=system,
                iterations=len(row["us"]),
                times=times,
                gbps=gbps,
                bus_gbps=bus_gbps(op, gbps, ranks),
                wrong=row["wrong"] if system != "grpc" else None,
                ratio=times_of(other["us"]).p50 / times.p50
                if other and system not in others and times.p50
                else None,
                more={"overlap %": statistics.median(row["overlap"])} if row["overlap"] else {},
            )
        )
    result.notes.append(
        "Times: of rank 0, from the end of a barrier. Sizes: bytes of one rank's array, or of its "
        "part of the larger one; GB/s: these bytes over p50; busbw: GB/s of the bus, as nccl-tests "
        "define it. registered: arrays of Communicator.empty(). #wrong: values that differ."
    )
    if any(op in MESSAGES for op in ops):
        result.notes.append(
            "round_trip: a message from rank 0 to rank 1 and back; in_flight: 64 messages, started "
            "together, and their acknowledgment; GB/s: of all these messages."
        )
    if others:
        result.against = OTHERS[others[0]]
    if "grpc" in others:
        result.notes.append("gRPC: TensorFlow's ring; its samples are means of several calls.")
    if "iall_reduce" in ops:
        result.notes.append(
            "overlap: the percentage of a non-blocking all-reduce that is hidden behind a "
            "computation of equal time; a pause instead if the ranks have no two cores each."
        )
    return result
