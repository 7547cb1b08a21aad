"""Timelines: single transfers of several processes as one Chrome trace."""

import json
import socket
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdma_transport import live
from rdma_transport.observe.samples import short

# Kinds of events, as native/protocol/trace.cc numbers them.
_SENT, _RELEASED, _ARRIVED, _HANDED_OVER = range(4)


def record(
    servers: list[live.LiveServer], seconds: float, events: int
) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Return what each process kept, by pid, and why others are not among them.

    Returns as soon as none is left to wait for.
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
        if recordings:
            time.sleep(seconds)
        for recording in recordings:
            try:
                kept[recording.server.pid] = recording.end()
            except ConnectionError as error:
                failed.append(str(error))
    return kept, failed


@dataclass
class Span:
    """One side of a transfer; times in nanoseconds of this host's monotonic clock."""

    pid: int
    sends: bool
    local: str
    remote: str
    key: str
    step: int
    bytes: int
    path: str
    begin: int
    end: int
    call: int  # what the sender's call, or taking the notification, lasted
    ended: bool  # released, or handed over, while it was recorded
    lane: int = 0

    @property
    def name(self) -> str:
        """The edge's name, or the key where it has another form."""
        parts = self.key.split(";")
        return parts[-2] if len(parts) > 1 else self.key

    @property
    def iteration(self) -> str:
        """Of a loop: frame and iteration, which end an edge's key."""
        _, semicolon, tail = self.key.rpartition(";")
        return tail if semicolon else "0:0"

    def identity(self) -> tuple[Any, ...]:
        """The same on both sides."""
        ends = (self.local, self.remote) if self.sends else (self.remote, self.local)
        return (*ends, self.step, self.key)


def spans(pid: int, kept: dict[str, Any]) -> list[Span]:
    """Return the transfers of one process, by when they began."""
    made: list[Span] = []
    open_spans: dict[tuple[Any, ...], Span] = {}
    for kind, begin, end, peer, handle, step, size, path, key in sorted(
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
            pid, sends, names["local"], names["remote"], kept["keys"][key], step, size, path,
            begin, end, end - begin, ended=sends and handle == 0,
        )  # fmt: skip
        made.append(span)
        if handle:
            open_spans[pair] = span
    for span in open_spans.values():
        span.end = max(span.end, kept["ended"])
    return made


def build(recorded: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the Chrome trace: tracks by process, direction and peer; arrows from send to receipt.

    Spans that overlap are on several lines of their track.
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
        events += _arrow(number, send, receipt, zero)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "host": socket.gethostname(),
            "clock": "CLOCK_MONOTONIC of this host: spans of other hosts' traces do not line up",
            "zero_ns": zero,
            "dropped_events": sum(kept["dropped"] for kept in recorded.values()),
        },
    }


def transfers(found: list[Span]) -> Iterable[tuple[Span, Span]]:
    """Yield each send with its receipt, of those of which both sides were recorded."""
    sends: dict[tuple[Any, ...], list[Span]] = defaultdict(list)
    for span in sorted(found, key=lambda span: span.begin):
        if span.sends:
            sends[span.identity()].append(span)
        elif sends[span.identity()]:
            # A key comes again only after it has been received, so the last one is meant.
            yield sends[span.identity()].pop(), span


def _lanes(pid: int, found: list[Span]) -> Iterable[dict[str, Any]]:
    """Give each span a line on which nothing else is at that time; yields the lines' names."""
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
        "path": span.path,
        "peer": _short(span.remote),
        "step": str(span.step),  # more digits than a viewer's numbers have
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
        "cat": f"{'send' if span.sends else 'receive'},{span.path}",
        "pid": span.pid,
        "tid": span.lane,
        "ts": (span.begin - zero) / 1e3,
        "dur": (span.end - span.begin) / 1e3,
        "args": about,
    }


def _arrow(number: int, send: Span, receipt: Span, zero: int) -> Iterable[dict[str, Any]]:
    for phase, span in (("s", send), ("f", receipt)):
        yield {
            "ph": phase,
            "name": "transfer",
            "cat": "transfer",
            "id": number,
            "pid": span.pid,
            "tid": span.lane,
            "ts": (span.begin - zero) / 1e3,
            **({"bp": "e"} if phase == "f" else {}),
        }


def _short(task: str) -> str:
    from graph_analyzer.report import short as shorter

    return shorter(short(task))


def write(trace: dict[str, Any], path: Path) -> None:
    """Write it, compactly; ``OSError`` if that cannot be."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(trace, file, ensure_ascii=False, separators=(",", ":"))


def summary(trace: dict[str, Any], path: Path) -> str:
    """Return a sentence for who made it."""
    events = trace["traceEvents"]
    sides = sum(event["ph"] == "X" for event in events)
    arrows = sum(event["ph"] == "s" for event in events)
    processes = len({event["pid"] for event in events})
    whose = f"{processes} process{'' if processes == 1 else 'es'}"
    if not sides:
        return f"{path}: no transfer began while it was recorded; is the job training?"
    return (
        f"{path}: {sides:,} sides of transfers, {arrows:,} of them pairs, of {whose}; "
        "open it in https://ui.perfetto.dev or chrome://tracing"
    )
