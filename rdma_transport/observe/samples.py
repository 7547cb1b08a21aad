"""Samples of the counters of running servers, and the rates between two samples."""

import json
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from rdma_transport import live

VERSION = 1
_STATS_FORMAT = 1
_PATIENCE_SECONDS = 2.0  # a stopped process must not delay the others for long
_WHOLE = (
    "copied_bytes", "staged_tensors", "inline_copied_bytes", "registrations", "live_regions",
    "region_bytes", "outstanding_tensors", "unclaimed_tensors", "late_tensors", "arena",
    "fallback_reasons", "errors", "data_service", "tracing",
)  # fmt: skip
_OF_PLAN = ("hits", "misses", "promotions", "demotions", "slot_allocations")


@dataclass(frozen=True)
class Sample:
    """The answers at ``clock`` (monotonic seconds), and why other processes did not answer."""

    clock: float
    answers: dict[int, dict[str, Any]]
    silent: dict[int, str]


def take(servers: list[live.LiveServer]) -> Sample:
    """Ask all servers."""
    clock = time.monotonic()
    answers, silent = live.ask(servers, _PATIENCE_SECONDS)
    for pid, stats in list(answers.items()):
        if not _is_known(stats):
            del answers[pid]
            silent[pid] = (
                f"process {pid} has another version of rdma_transport. "
                "Run the rdma-transport command of that version"
            )
    return Sample(clock, answers, silent)


def _is_known(stats: dict[str, Any]) -> bool:
    """Whether this version understands the answer."""
    try:
        _process(0, stats, None, None)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return bool(stats["format"] == _STATS_FORMAT)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the result of ``describe``."""
    text = resources.files("rdma_transport.observe").joinpath("status.schema.json").read_text()
    result: dict[str, Any] = json.loads(text)
    return result


def describe(after: Sample, before: Sample | None) -> dict[str, Any]:
    """Return the status of all processes. Rates are null for those not in ``before``."""
    processes = []
    for pid, stats in sorted(after.answers.items()):
        earlier = before.answers.get(pid) if before else None
        seconds = after.clock - before.clock if before and earlier else None
        processes.append(_process(pid, stats, earlier, seconds))
    return {
        "version": VERSION,
        "host": socket.gethostname(),
        "time": time.time(),
        "processes": processes,
        "silent": [{"pid": pid, "reason": why} for pid, why in sorted(after.silent.items())],
    }


def _process(
    pid: int, stats: dict[str, Any], earlier: dict[str, Any] | None, seconds: float | None
) -> dict[str, Any]:
    known = dict(_named(earlier["peers"])) if earlier else {}
    return {
        "pid": pid,
        "tasks": [short(task) for task in stats["tasks"]],
        "interval_seconds": seconds,
        **_traffic(stats, earlier, seconds),
        **{key: stats[key] for key in _WHOLE},
        "plan": {key: stats["plan"][key] for key in _OF_PLAN},
        "peers": [_peer(peer, known.get(name), seconds) for name, peer in _named(stats["peers"])],
    }


def _named(peers: list[dict[str, Any]]) -> Iterable[tuple[tuple[str, str, int], dict[str, Any]]]:
    """Number peers with equal names: a process may have had several servers with one name."""
    seen: Counter[tuple[str, str]] = Counter()
    for peer in peers:
        name = peer["local"], peer["task"]
        seen[name] += 1
        yield (*name, seen[name]), peer


def _peer(
    peer: dict[str, Any], earlier: dict[str, Any] | None, seconds: float | None
) -> dict[str, Any]:
    return {
        **peer,
        "task": short(peer["task"]),
        "local": short(peer["local"]),
        **_traffic(peer, earlier, seconds),
    }


def _traffic(
    one: dict[str, Any], earlier: dict[str, Any] | None, seconds: float | None
) -> dict[str, Any]:
    rates = None
    if earlier is not None and seconds:
        rates = {
            f"{way}_{unit}_per_second": (_sum(one[way], unit) - _sum(earlier[way], unit)) / seconds
            for way in ("sent", "received")
            for unit in ("tensors", "bytes")
        }
    return {"sent": one["sent"], "received": one["received"], "rates": rates}


def _sum(modes: dict[str, Any], unit: str) -> int:
    return sum(mode[unit] for mode in modes.values())


def short(task: str) -> str:
    """Return ``/job:ps/task:0`` for ``/job:ps/replica:0/task:0``."""
    return task.replace("/replica:0", "")
