"""Timelines: the transfers of several processes as one Chrome trace."""

import json
import socket
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdma_transport import live, units
from rdma_transport.observe.samples import short

# Kinds of events, as native/protocol/trace.cc numbers them.
_SENT, _RELEASED, _ARRIVED, _HANDED_OVER = range(4)


def record(
    servers: list[live.LiveServer], seconds: float, events: int
) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Return the events of each process, by pid, and the errors of the others.

    Returns at once if no process can be recorded.
    """
    kept: dict[int, dict[str, Any]] = {}
    failed: list[str] = []
    recordings: list[live.Recording] = []
    with ExitStack() as stack:
        for server in servers:
            try:
                recordings.append(server.trace(events))
                stack.callback(recordings[-1].cancel)
            except ConnectionError as error:
                failed.append(str(error))
        with suppress(KeyboardInterrupt):  # ends the recording early
            time.sleep(seconds if recordings else 0)
        for recording in recordings:
            try:
                kept[recording.server.pid] = recording.end()
            except ConnectionError as error:
                failed.append(str(error))
    return kept, failed


@dataclass
class Span:
    """One side of a transfer. Times are nanoseconds of this host's monotonic clock."""

    pid: int
    sends: bool
    local: str
    remote: str
    key: str
    step: int
    bytes: int
    mode: str
    begin: int
    end: int
    call: int  # duration of the sender's call, or of processing the notification
    ended: bool  # released, or handed over, during the recording
    lane: int = 0

    @property
    def name(self) -> str:
        """The name of the edge, or the key if it has another form."""
        parts = self.key.split(";")
        return parts[-2] if len(parts) > 1 else self.key

    @property
    def iteration(self) -> str:
        """Frame and iteration of a loop, the last part of an edge's key."""
        _, semicolon, tail = self.key.rpartition(";")
        return tail if semicolon else "0:0"

    def identity(self) -> tuple[Any, ...]:
        """A key that is equal on both sides."""
        ends = (self.local, self.remote) if self.sends else (self.remote, self.local)
        return (*ends, self.step, self.key)


def spans(pid: int, kept: dict[str, Any]) -> list[Span]:
    """Return the transfers of one process, ordered by start time."""
    made: list[Span] = []
    open_spans: dict[tuple[Any, ...], Span] = {}
    for kind, begin, end, peer, handle, step, size, mode, key in sorted(
        kept["events"], key=lambda event: event[1]
    ):
        sends = kind in (_SENT, _RELEASED)
        pair = (peer, handle) if sends else (handle,)
        pair = (sends, *pair)
        if kind in (_RELEASED, _HANDED_OVER):
            span = open_spans.pop(pair, None)
            if span is not None:
                span.end, span.ended = max(begin, span.end), True
            continue
        names = kept["peers"][peer]
        span = Span(
            pid, sends, names["local"], names["remote"], kept["keys"][key], step, size, mode,
            begin, end, end - begin, ended=sends and handle == 0,
        )  # fmt: skip
        made.append(span)
        if handle:
            open_spans[pair] = span
    for span in open_spans.values():
        span.end = max(span.end, kept["ended"])
    return made


def build(recorded: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the Chrome trace: tracks by process, direction and peer; arrows from send to receive.

    Spans that overlap are on separate lines of their track.
    """
    zero = min(kept["began"] for kept in recorded.values())
    everything: list[Span] = []
    events: list[dict[str, Any]] = []
    for pid, kept in sorted(recorded.items()):
        found = spans(pid, kept)
        everything += found
        tasks = sorted({_short(span.local) for span in found})
        events.append(_name("process_name", pid, 0, ", ".join([*tasks, f"process {pid}"])))
        events += _lanes(pid, found)
    events += [_slice(span, zero) for span in everything]
    for number, (send, receipt) in enumerate(transfers(everything), 1):
        events += arrow(number, _slice(send, zero), _slice(receipt, zero))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "host": socket.gethostname(),
            "clock": "CLOCK_MONOTONIC of this host; not comparable with traces of other hosts",
            "zero_ns": zero,
            "dropped_events": sum(kept["dropped"] for kept in recorded.values()),
        },
    }


def transfers(found: list[Span]) -> Iterable[tuple[Span, Span]]:
    """Yield each matched send/receive pair."""
    sends: dict[tuple[Any, ...], list[Span]] = defaultdict(list)
    for span in sorted(found, key=lambda span: span.begin):
        if span.sends:
            sends[span.identity()].append(span)
        elif sends[span.identity()]:
            # A key is reused only after its tensor was received, so the last send matches.
            yield sends[span.identity()].pop(), span


def _lanes(pid: int, found: list[Span]) -> Iterable[dict[str, Any]]:
    """Assign spans to lines so that none overlap; yield the names of the lines."""
    tracks: dict[tuple[str, bool, str], list[Span]] = defaultdict(list)
    for span in found:
        tracks[_short(span.local), span.sends, _short(span.remote)].append(span)
    number = 0
    for (_, sends, remote), track in sorted(tracks.items()):
        ends: list[int] = []
        for span in sorted(track, key=lambda span: span.begin):
            free = next((i for i, end in enumerate(ends) if end <= span.begin), len(ends))
            ends[free : free + 1] = [span.end]
            span.lane = number + free + 1
        title = f"{'to' if sends else 'from'} {remote}"
        for i in range(len(ends)):
            number += 1
            yield _name("thread_name", pid, number, title if i == 0 else f"{title} ({i + 1})")
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": number, "args": {
                "sort_index": number}}  # fmt: skip


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(span: Span, zero: int) -> dict[str, Any]:
    about = {
        "bytes": span.bytes,
        "mode": span.mode,
        "task": _short(span.local),
        "peer": _short(span.remote),
        "step": str(span.step),  # has more digits than a viewer's numbers
    }
    if span.iteration != "0:0":
        about["iteration"] = span.iteration
    if span.sends:
        about |= {"call_us": span.call / 1e3, "released": span.ended}
    else:
        about |= {"taking_us": span.call / 1e3, "handed_over": span.ended}
    return {
        "ph": "X",
        "name": span.name,
        "cat": f"{'send' if span.sends else 'receive'},{span.mode}",
        "pid": span.pid,
        "tid": span.lane,
        "ts": (span.begin - zero) / 1e3,
        "dur": (span.end - span.begin) / 1e3,
        "args": about,
    }


def arrow(number: int | str, sent: dict[str, Any], got: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arrow from the slice of a send to that of its receipt."""
    about = {"name": "transfer", "cat": "transfer", "id": number}
    start, end = ({key: side[key] for key in ("pid", "tid", "ts")} for side in (sent, got))
    return [{"ph": "s", **about, **start}, {"ph": "f", **about, **end, "bp": "e"}]


def _short(task: str) -> str:
    return units.short(short(task))


def write(trace: dict[str, Any], path: Path) -> None:
    """Write the trace as compact JSON. Raises ``OSError`` if it cannot be written."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(trace, file, ensure_ascii=False, separators=(",", ":"))


def summary(trace: dict[str, Any], path: Path) -> str:
    """Return one line for the user: what the file contains and how to open it."""
    events = trace["traceEvents"]
    sides = sum(event["ph"] == "X" for event in events)
    arrows = sum(event["ph"] == "s" for event in events)
    processes = len({event["pid"] for event in events})
    whose = f"{processes} process{'' if processes == 1 else 'es'}"
    if not sides:
        return f"{path}: no transfer started during the recording; check that the job is training"
    return (
        f"{path}: {sides:,} event{'' if sides == 1 else 's'}, {arrows:,} matched send/receive "
        f"pair{'' if arrows == 1 else 's'}, from {whose}; "
        "open it in https://ui.perfetto.dev or chrome://tracing"
    )
