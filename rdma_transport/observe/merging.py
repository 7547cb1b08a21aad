"""Merges the timelines of several hosts, whose clocks differ.

The transfers between two hosts show how far their clocks are apart. With the shortest time from
send to arrival in each direction, half of the difference is the offset, as in NTP: its error is at
most half of their sum. With transfers in one direction only, the shortest is taken to need no time.
A drift of the clocks during the recording is not corrected.
"""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

from rdma_transport.errors import BadInputError
from rdma_transport.observe.recording import arrow

_Event = dict[str, Any]


class _Trace:
    """The trace of a file. Times and offsets are in microseconds."""

    def __init__(self, path: Path, number: int) -> None:
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            self.host: str = read["otherData"]["host"]
            self.dropped: int = read["otherData"]["dropped_events"]
            self.events: list[_Event] = read["traceEvents"]
            slices = [event for event in self.events if event["ph"] == "X"]
            counts = Counter(map(_identity, slices))
            # a transfer whose step and key were used twice could be taken for the other one
            self.sides = {key: each for each in slices if counts[key := _identity(each)] == 1}
        except OSError as error:
            raise BadInputError(f"{path}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInputError(f"{path} is not a timeline of this version") from error
        self.path = path
        self.offset: float | None = None if number else 0.0  # to add to its times
        for event in self.events:
            if event["name"] == "process_name":
                event["args"]["name"] += f" on {self.host}"
            event["pid"] += number << 22  # Linux has no greater process IDs
            if "id" in event:
                event["id"] = f"{number}.{event['id']}"


def _identity(event: _Event) -> tuple[Any, ...]:
    """A key of a transfer's side; the other side has the same with the opposite direction."""
    about = event["args"]
    sends = event["cat"].startswith("send")
    ends = (about["task"], about["peer"]) if sends else (about["peer"], about["task"])
    return (sends, *ends, about["step"], event["name"], about.get("iteration"))


def _pairs(one: _Trace, two: _Trace) -> list[tuple[_Event, _Event]]:
    """Return the transfers from one host to the other."""
    keys = [key for key in one.sides if key[0] and (False, *key[1:]) in two.sides]
    return [(one.sides[key], two.sides[(False, *key[1:])]) for key in keys]


def merge(paths: list[Path]) -> dict[str, Any]:
    """Return the trace of all files, on the clock of the first.

    Raises ``BadInputError`` if a file is not a timeline or has no transfer with the others.
    """
    traces = [_Trace(path, number) for number, path in enumerate(paths)]
    pairs = {(one, two): _pairs(one, two) for one, two in itertools.permutations(traces, 2)}
    while waiting := [trace for trace in traces if trace.offset is None]:
        ready = (
            (known, one)
            for one in waiting
            for known in traces
            if known.offset is not None and (pairs[known, one] or pairs[one, known])
        )
        known, one = next(ready, (None, waiting[0]))
        if known is None:
            raise BadInputError(f"{one.path}: no transfer of it is in the other timelines")
        there = [got["ts"] - sent["ts"] for sent, got in pairs[known, one]]
        back = [got["ts"] - sent["ts"] for sent, got in pairs[one, known]]
        ahead = [*sorted(there)[:1], *(-time for time in sorted(back)[:1])]
        one.offset = (known.offset or 0) - sum(ahead) / len(ahead)
    first = min(trace.offset or 0 for trace in traces)  # no time is negative
    for trace in traces:
        for event in trace.events:
            if "ts" in event:
                event["ts"] += (trace.offset or 0) - first
    events = [event for trace in traces for event in trace.events]
    for number, (sent, got) in enumerate(itertools.chain(*pairs.values())):
        events += arrow(f"between.{number}", sent, got)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "host": ", ".join(trace.host for trace in traces),
            "clock": f"CLOCK_MONOTONIC of {traces[0].host}; others by their transfers with it",
            "dropped_events": sum(trace.dropped for trace in traces),
        },
    }
