"""The status of processes as tables for a terminal or a pipe."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rdma_transport.counters import MODES
from rdma_transport.tables import Fitted
from rdma_transport.units import format_bytes, short

Columns = dict[str, Callable[[dict[str, Any]], str | Text]]  # ">" before a name: right-aligned
_STYLES = {
    "grpc": "yellow", "unreachable": "red", "connecting": "cyan", "idle": "dim",
}  # fmt: skip


def render(status: dict[str, Any]) -> Group:
    """Return ``samples.describe()`` as tables."""
    parts: list[RenderableType] = []
    for process in status["processes"]:
        tasks = ", ".join(map(short, process["tasks"])) or "no task"
        title = Text(f"{tasks}  (process {process['pid']})", style="bold")
        parts += [title, facts(process), _rows(process)]
        parts += [*remarks(process), Text()]
    parts += [Text(one["reason"], style="red") for one in status["silent"]]
    return Group(*parts)


def facts(process: dict[str, Any]) -> Table:
    """Return what concerns the whole process, a line each."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, text in _lines(process):
        table.add_row(f"  {name}", text)
    return table


def _lines(process: dict[str, Any]) -> Iterable[tuple[str, Text]]:
    arena, plan = process["arena"], process["plan"]
    yield (
        "memory",
        Text(
            f"{format_bytes(arena['used_bytes'])} used of {format_bytes(arena['limit_bytes'])}; "
            f"registered {format_bytes(process['region_bytes'])} "
            f"in {counted(process['live_regions'], 'region')}, "
            f"{counted(process['registrations'], 'registration')} so far"
        ),
    )
    if arena["refused"]:
        yield (
            "",
            Text(
                f"{counted(arena['refused'], 'allocation')} refused: the arena was full",
                style="red",
            ),
        )
    misses = sum(plan["misses"].values())
    yield (
        "plan",
        Text(f"{plan['hits']:,} hits, {misses:,} misses{_reasons(plan['misses'])}"),
    )
    copied = process["copied_bytes"] + process["inline_copied_bytes"]
    staged = counted(process["staged_tensors"], "tensor")
    yield "copied", Text(f"{format_bytes(copied)}, {staged} by the sender")
    sites = sorted(plan["staged_bytes_by_site"].items(), key=lambda site: -site[1])
    if sites:
        yield "staged", Text("; ".join(f"{site} {format_bytes(size)}" for site, size in sites))
    for way in ("sent", "received"):
        replies = process["data_service"][way]
        if replies["elements"]:
            text = f"{way} {replies['elements']:,} elements, {format_bytes(replies['bytes'])}"
            yield "tf.data", Text(text)
    if process["fallback_reasons"]:
        yield "gRPC fallback", Text(_reasons(process["fallback_reasons"])[2:], style="yellow")
    for port in process["ports"]:
        text = (
            f"{port['text']}: written {format_bytes(port['written_bytes'])}, "
            f"read {format_bytes(port['read_bytes'])}, {counted(port['failures'], 'failure')}"
        )
        yield "port", Text(text) if port["active"] else Text(f"{text}, down", style="red")
    if process["tracing"]:
        yield "timeline", Text("recording", style="cyan")
    errors = process["errors"]
    yield "errors", Text(_reasons(errors)[2:], style="red") if errors else Text("none")


def _reasons(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ": " * bool(ordered) + "; ".join(f"{reason} {count:,}" for reason, count in ordered)


def _rows(process: dict[str, Any]) -> RenderableType:
    """Return the table of edges, if the status has them, or else of peers."""
    rows, columns, what = process["peers"], dict(PEER_COLUMNS), "peers"
    if "edges" in process["plan"]:
        rows, columns, what = process["plan"]["edges"], EDGE_COLUMNS | {"why": _why}, "edges"
        rows = sorted(rows, key=lambda edge: (-edge["bytes"], edge["name"]))
    elif not any(peer["rates"] for peer in rows):
        del columns[">sends"], columns[">receives"]
    if not rows:
        return Padding(Text(f"no {what} yet", style="dim"), (0, 2), expand=False)
    if len(process["tasks"]) < 2:
        columns.pop("from")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in columns:
        right = name.startswith(">")
        justify: JustifyMethod = "right" if right else "left"
        table.add_column(name.lstrip(">"), justify=justify, no_wrap=right)
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return Padding(Fitted(table), (0, 2), expand=False)


def _why(edge: dict[str, Any]) -> str:
    return str(edge["reason"])


def total_bytes(modes: dict[str, Any]) -> int:
    return int(sum(mode["bytes"] for mode in modes.values()))


def _transport(peer: dict[str, Any]) -> Text:
    transport = peer["transport"]
    return Text(transport, style=_STYLES.get(transport, "green"))  # green: the name of a fabric


def _rate(peer: dict[str, Any], way: str) -> str:
    rates = peer["rates"]
    return f"{format_bytes(rates[f'{way}_bytes_per_second'])}/s" if rates else "–"


def _modes(peer: dict[str, Any]) -> Text:
    """The share of each mode in the tensors of both directions."""
    counts = {
        mode: peer["sent"][mode]["tensors"] + peer["received"][mode]["tensors"] for mode in MODES
    }
    whole = sum(counts.values())
    if not whole:
        return Text("–", style="dim")
    return Text(", ").join(
        Text(f"{mode} {_percent(count / whole)}", style="yellow" if mode == "grpc" else "")
        for mode, count in counts.items()
        if count
    )


def _percent(share: float) -> str:
    """Show 0% and 100% only for exact values. No space before the sign: a line would break."""
    if 0 < share < 0.001:
        return "<0.1%"
    if 0.999 < share < 1:
        return ">99.9%"
    return f"{100 * share:.1f}%".replace(".0%", "%")


def _slots(peer: dict[str, Any]) -> Text:
    slots = peer["slots"]
    if not slots["agreed"]:
        return Text("–", style="dim")
    free = slots["agreed"] - slots["busy"]
    return Text(f"{free}/{slots['agreed']}", style="" if free else "yellow")


def _ring(peer: dict[str, Any]) -> Text:
    ring = peer["ring"]
    if not ring["capacity_bytes"]:
        return Text("–", style="dim")
    if ring["waiting_bytes"]:
        return Text(f"full, {format_bytes(ring['waiting_bytes'])} waiting", style="yellow")
    return Text(f"{100 * ring['used_bytes'] / ring['capacity_bytes']:.0f} %")


def _link(peer: dict[str, Any]) -> Text:
    if not peer["linked"]:
        return Text("lost", style="red") if peer["lost"] else Text("–", style="dim")
    again = f", reconnected {peer['links'] - 1}×" if peer["links"] > 1 else ""
    return Text(f"up {duration(time.time() - peer['linked_at'])}{again}")


def remarks(process: dict[str, Any]) -> Iterable[Text]:
    """Warnings below the tables, in whole sentences."""
    for peer in process["peers"]:
        why = peer["reason"] if peer["transport"] in ("grpc", "unreachable") else ""
        if why:
            how = "falls back to gRPC" if peer["transport"] == "grpc" else "cannot be reached"
            yield Text(f"  {short(peer['task'])} {how}: {why}", style="yellow")
        if peer["last_error"] and peer["last_error"] != why:
            yield Text(f"  {short(peer['task'])}, last error: {peer['last_error']}", style="dim")


def counted(count: int, what: str) -> str:
    """Return ``1 region`` or ``1,200 regions``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return ``5 s``, ``119 s``, ``12 min``, ``3 h`` or ``2 days``."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


PEER_COLUMNS: Columns = {
    "from": lambda peer: short(peer["local"]),
    "peer": lambda peer: short(peer["task"]),
    "transport": _transport,
    "link": _link,
    ">sends": lambda peer: _rate(peer, "sent"),
    ">receives": lambda peer: _rate(peer, "received"),
    ">sent": lambda peer: format_bytes(total_bytes(peer["sent"])),
    ">received": lambda peer: format_bytes(total_bytes(peer["received"])),
    "modes": _modes,
    ">outstanding": lambda peer: f"{peer['outstanding_tensors']:,}",
    ">slots": _slots,
    ">ring": _ring,
}
EDGE_COLUMNS: Columns = {
    "edge": lambda edge: edge["name"],
    "from": lambda edge: short(edge["source"]),
    "to": lambda edge: short(edge["destination"]),
    "mode": lambda edge: edge["mode"],
    ">bytes": lambda edge: format_bytes(edge["bytes"]),
    ">hits": lambda edge: f"{edge['hits']:,}",
    ">misses": lambda edge: f"{edge['misses']:,}",
    ">staged": lambda edge: format_bytes(edge["staged_bytes"]),
    ">slots": lambda edge: str(edge["slots"]),
    "site": lambda edge: edge["site"],
}
