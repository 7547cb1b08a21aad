"""Samples of the counters of running servers, and the rates between two samples."""

import json
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from itertools import product
from typing import Any

from rdma_transport import live
from rdma_transport.counters import MODES, PEER, PROCESS, is_label

VERSION = 1
_STATS_FORMAT = 1
_COUNT = {"type": "integer", "minimum": 0}
_HISTOGRAM = {
    "type": "object",
    "properties": {
        "buckets": {"type": "object", "additionalProperties": _COUNT},
        "count": _COUNT,
        "sum": {"type": "number", "minimum": 0},
    },
    "required": ["buckets", "count", "sum"],
    "additionalProperties": False,
}
_TIMEOUT_SECONDS = 2.0  # a stopped process must not delay the others for long


@dataclass(frozen=True)
class Sample:
    """The answers at ``clock`` (monotonic seconds), and why other processes did not answer."""

    clock: float
    answers: dict[int, dict[str, Any]]
    silent: dict[int, str]


def take(servers: list[live.LiveServer]) -> Sample:
    """Ask all servers."""
    clock = time.monotonic()
    answers, silent = live.ask(servers, _TIMEOUT_SECONDS)
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
        for table, counted in ((PROCESS, [stats]), (PEER, stats["peers"])):
            for counter, one in product(table, counted):
                counter.values(one)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return bool(stats["format"] == _STATS_FORMAT)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what ``rdma-transport status --json`` prints."""
    text = resources.files("rdma_transport.observe").joinpath("status_base.json").read_text()
    result: dict[str, Any] = json.loads(text)
    for name, table in (("process", PROCESS), ("peer", PEER)):
        for counter in table:
            shape = _HISTOGRAM if counter.kind == "histogram" else _COUNT
            value = {**shape, "description": counter.meaning}
            _declare(result["$defs"][name], counter.key.split("."), value)
    return result


def _declare(outer: dict[str, Any], path: list[str], value: dict[str, Any]) -> None:
    """Add ``value`` to the schema of an object, at ``path``."""
    if not path:
        outer.update(value)
        return
    name, *rest = path
    outer.setdefault("type", "object")
    outer.setdefault("additionalProperties", False)
    if name == "{mode}":
        for mode in MODES:
            _declare(outer, [mode, *rest], value)
    elif is_label(name):
        outer["additionalProperties"] = outer["additionalProperties"] or {}
        _declare(outer["additionalProperties"], rest, value)
    else:
        _declare(outer.setdefault("properties", {}).setdefault(name, {}), rest, value)
        outer["required"] = sorted({*outer.get("required", ()), name})


def describe(after: Sample, before: Sample | None, edges: bool = False) -> dict[str, Any]:
    """Return the status of all processes. Rates are null for those not in ``before``."""
    processes = []
    for pid, stats in sorted(after.answers.items()):
        earlier = before.answers.get(pid) if before else None
        seconds = after.clock - before.clock if before and earlier else None
        processes.append(_process(pid, stats, earlier, seconds))
        if edges:
            processes[-1]["plan"]["edges"] = stats["plan"]["edges"]
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
    known = dict(named(earlier["peers"])) if earlier else {}
    return {
        "pid": pid,
        "interval_seconds": seconds,
        "rates": _rates(stats, earlier, seconds),
        **{key: value for key, value in stats.items() if key not in ("format", "loaded")},
        "tasks": [short(task) for task in stats["tasks"]],
        "plan": {key: value for key, value in stats["plan"].items() if key != "edges"},
        "tracing": stats["tracing"],
        "peers": [_peer(peer, known.get(name), seconds) for name, peer in named(stats["peers"])],
    }


def named(peers: list[dict[str, Any]]) -> Iterable[tuple[tuple[str, str, int], dict[str, Any]]]:
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
        "rates": _rates(peer, earlier, seconds),
    }


def _rates(
    one: dict[str, Any], earlier: dict[str, Any] | None, seconds: float | None
) -> dict[str, float] | None:
    if earlier is None or not seconds:
        return None
    return {
        f"{way}_{unit}_per_second": (_sum(one[way], unit) - _sum(earlier[way], unit)) / seconds
        for way in ("sent", "received")
        for unit in ("tensors", "bytes")
    }


def _sum(modes: dict[str, Any], unit: str) -> int:
    return sum(mode[unit] for mode in modes.values())


def short(task: str) -> str:
    """Return ``/job:ps/task:0`` for ``/job:ps/replica:0/task:0``."""
    return task.replace("/replica:0", "")
