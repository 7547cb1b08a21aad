"""Tables of a plan, of reductions and of capacities, for a terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from graph_analyzer.capacity import Capacity
from graph_analyzer.overlap import Overlap
from graph_analyzer.plan import Plan, Traffic, total
from graph_analyzer.records import MODES, Edge
from graph_analyzer.reductions import Reduction, Reductions
from graph_analyzer.simulation import Behavior, StepTimes
from rdma_transport.tables import Fitted
from rdma_transport.units import format_bandwidth, format_bytes, format_seconds, short

MODE_STYLES = {"static": "green", "dynamic": "yellow", "inline": "cyan", "grpc": "red"}


def print_plan(plan: Plan, console: Console, rows: int = 0) -> None:
    """Print the edges, the memory per task, the bytes per link and the totals by mode.

    Prints the ``rows`` largest edges; 0 means all. Prints no table if no tensor crosses.
    """
    if plan.tensors:
        _print_tables(plan, console, rows)
    console.print(_summary(plan), style="dim", highlight=False)


def _print_tables(plan: Plan, console: Console, rows: int) -> None:
    console.print(Fitted(edge_table(plan, rows)))
    _print_left(console, "edge", len(plan.tensors), rows)
    for table in (memory_table(plan), link_table(plan), mode_table(plan)):
        console.print(Fitted(table))


def print_reductions(found: Reductions, console: Console, rows: int = 0) -> None:
    """Print the ``rows`` largest reductions, and the sums of all; 0 means all."""
    console.print(Fitted(reduction_table(found, rows)))
    _print_left(console, "reduction", len(found.operations), rows)


def _print_left(console: Console, what: str, count: int, rows: int) -> None:
    """Print how many rows a table of the largest ones has left out."""
    left = count - rows if rows else 0
    if left > 0:
        smaller = f"{what} is" if left == 1 else f"{what}s are"
        console.print(f"{left} smaller {smaller} not shown (--rows 0 shows all)\n", style="dim")


def edge_table(plan: Plan, rows: int = 0) -> Table:
    """Return a table of the tensors that cross, largest first and unknown sizes last."""
    table = _table("Edges", "tensor", "from → to", "type", ">bytes", "mode", ">slots")
    _columns(table, "allocated by", "why")
    ordered = sorted(plan.tensors, key=lambda e: (e.bytes is None, -(e.bytes or 0), e.name))
    for edge in ordered[: rows or None]:
        _row(
            table,
            edge.name,
            f"{_end(edge.source, edge.source_device)} → "
            f"{_end(edge.destination, edge.destination_device)}",
            type_text(edge.dtype, edge.shape),
            format_bytes(edge.bytes),
            _mode(edge.mode),
            # slot_bytes is the size of all slots
            f"{edge.slots} × {format_bytes(edge.slot_bytes // edge.slots)}" if edge.slots else "–",
            _site(edge),
            edge.reason,
        )
    return table


def memory_table(plan: Plan) -> Table:
    """Return a table of the bytes that each task registers, sends and receives per step.

    The peaks are for one step in which tensors that are never in use together share memory.
    """
    table = _table("Memory per task", "task", ">slots", ">peak of slots", ">sources")
    _columns(table, ">peak of sources", ">registered", ">sent per step", ">received per step")
    for task in plan.tasks:
        _row(
            table,
            short(task.name),
            format_bytes(task.slot_bytes),
            format_bytes(task.slot_peak_bytes),
            format_bytes(task.source_bytes),
            format_bytes(task.source_peak_bytes),
            format_bytes(task.slot_bytes + task.source_bytes),
            format_bytes(task.sent_bytes),
            format_bytes(task.received_bytes),
        )
    return table


def link_table(plan: Plan) -> Table:
    """Return a table of the bytes per step from task to task, the busiest link first."""
    table = _table("Bytes per link and step", "link", ">tensors", ">bytes", ">unknown")
    _columns(table, *(f">{name}" for name in MODES))
    links = sorted(plan.by_link().items(), key=lambda item: (-total(item[1]).bytes, item[0]))
    for (source, destination), modes in links:
        whole = total(modes)
        parts = (modes.get(name, Traffic()) for name in MODES)
        _row(
            table,
            f"{short(source)} → {short(destination)}",
            str(whole.edges),
            format_bytes(whole.bytes),
            _or_dash(whole.unknown),
            *(format_bytes(part.bytes) if part.edges else "–" for part in parts),
        )
    return table


def mode_table(plan: Plan) -> Table:
    """Return a table of the number and the known bytes per step of each mode."""
    table = _table("Totals", "mode", ">tensors", ">bytes per step", ">share", ">unknown")
    whole = plan.total()
    for name, traffic in plan.by_mode().items():
        share = f"{100 * traffic.bytes / whole.bytes:.1f} %" if whole.bytes else "–"
        cells = (str(traffic.edges), format_bytes(traffic.bytes), share, _or_dash(traffic.unknown))
        _row(table, _mode(name), *cells)
    table.add_section()
    _row(table, "all", str(whole.edges), format_bytes(whole.bytes), "", _or_dash(whole.unknown))
    return table


def capacity_table(found: Sequence[Capacity]) -> Table:
    """Return a table with one row per cluster. If servers differ, it shows the busiest one."""
    first = found[0]
    title = (
        f"{format_bytes(first.model_bytes)} of parameters, placed {_PLACED[first.placement]}; "
        f"{format_bandwidth(first.bandwidth)} per port and direction; {first.slots} slots per edge"
    )
    table = _table(title, ">workers", ">servers", ">imbalance", ">server memory", ">worker memory")
    _columns(table, ">server QPs", ">worker QPs", ">all QPs", ">link, each way")
    _columns(table, ">server port, each way", ">overlapped step", ">synchronous step", "limit")
    batched = any(one.samples_per_second is not None for one in found)
    _columns(table, *([">max. samples/s"] if batched else []))
    for one in found:
        cells = [
            str(one.workers),
            str(one.servers),
            f"{one.imbalance:.2f}",
            format_bytes(one.server_registered),
            format_bytes(one.worker_registered),
            str(one.server_queue_pairs),
            str(one.worker_queue_pairs),
            str(one.total_queue_pairs),
            format_bytes(one.largest_shard),
            format_bytes(one.server_port_bytes),
            format_seconds(one.seconds_overlapped),
            format_seconds(one.seconds_synchronous),
            f"{one.busiest_port} port",
        ]
        if one.samples_per_second is not None:
            cells.append(f"{one.samples_per_second:,.0f}")
        _row(table, *cells)
    return table


def simulation_table(
    found: Sequence[Capacity], simulated: Sequence[StepTimes], behavior: Behavior
) -> Table:
    """Return a table of the distributions of step times, one row per cluster of ``found``."""
    title = (
        f"{behavior.steps} simulated steps, {behavior.scheme}; computation "
        f"{format_seconds(behavior.compute)}, sigma {behavior.sigma:g}; "
        f"{format_bandwidth(found[0].bandwidth)} per port and direction"
    )
    table = _table(title, ">workers", ">servers", ">p50", ">p95", ">p99", ">mean", "bound by")
    _columns(table, "parts of the mean step")
    for one, times in zip(found, simulated, strict=True):
        _row(
            table,
            str(one.workers),
            "–" if times.scheme == "mirrored" else str(one.servers),
            *(format_seconds(each) for each in (times.p50, times.p95, times.p99, times.mean)),
            times.bound,
            ", ".join(f"{part} {of:.0%}" for part, of in times.shares.items() if of >= 0.005),
        )
    return table


def reduction_table(found: Reductions, rows: int = 0) -> Table:
    """Return a table of what the ranks exchange in a step, in the order of backpropagation.

    It has the ``rows`` largest; 0 means all.
    """
    title = f"Reductions of a step of {found.ranks} ranks"
    if found.ranks != found.traced_by:
        title += f", with the schemes of {found.traced_by}"
    table = _table(title, ">#", "what", ">tensors", ">bytes", "scheme", "why", ">sent by a rank")
    _columns(table, ">backprop done")
    numbered = list(enumerate(found.operations, 1))
    largest = sorted(numbered, key=lambda each: (each[1].bytes is None, -(each[1].bytes or 0)))
    for number, one in sorted(largest[: rows or None], key=lambda each: each[0]):
        _row(
            table,
            str(number),
            _names(one.what),
            str(len(one.what)),
            format_bytes(one.bytes),
            one.scheme,
            _reason(one),
            format_bytes(one.sent),
            _start(one.start),
        )
    table.add_section()
    tensors = str(sum(len(one.what) for one in found.operations))
    unknown = f"{found.unknown} of unknown size" if found.unknown else ""
    total = (format_bytes(found.bytes), "", unknown, format_bytes(found.sent))
    _row(table, "", "all", tensors, *total, "")
    return table


def overlap_text(found: Overlap) -> str:
    """Return what was measured, in a sentence."""
    step, apart, exchange = map(format_seconds, (found.step, found.apart, found.exchange))
    return (
        f"Median of {found.steps} steps: {step}, and {apart} if each rank exchanges with itself "
        f"only. The exchange alone takes {exchange}: {100 * found.hidden:.0f} % of it is hidden."
    )


def _names(what: tuple[str, ...]) -> str:
    """Return all names if they are few, or the first and the last one."""
    return ", ".join(what) if len(what) <= 2 else f"{what[0]} … {what[-1]}"


def _reason(one: Reduction) -> str:
    places = {"conditional": "not in each step", "loop": "in each iteration of a loop"}
    return ", ".join(filter(None, (one.reason, places.get(one.within or ""))))


def _start(start: float | None) -> str:
    return "–" if start is None else f"{100 * start:.0f} %"


_PLACED = {"even": "evenly", "greedy": "greedily as whole variables"}


def _summary(plan: Plan) -> str:
    limit = format_bytes(plan.arena_limit)
    lines = f"{plan.nodes} nodes analyzed in {format_seconds(plan.analysis_seconds)}; "
    lines += f"{format_bytes(plan.registered_bytes)} planned, limit {limit} per arena"
    slots = sum(task.slot_bytes for task in plan.tasks)
    peak = sum(task.slot_peak_bytes for task in plan.tasks)
    if peak < slots:
        lines += (
            f"; slots {format_bytes(peak)} instead of {format_bytes(slots)} if shared in a step"
        )
    control = len(plan.control_edges)
    if not control:
        return lines
    edges = "edge carries" if control == 1 else "edges carry"
    return f"{lines}; {control} control {edges} no bytes"


def type_text(dtype: str, shape: Iterable[int | None] | None) -> str:
    """Return ``float32[784, ?]``, or ``float32[…]`` if the rank is unknown."""
    if shape is None:
        return f"{dtype}[…]"
    return f"{dtype}[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _end(task: str, device: str) -> str:
    """Return ``ps:0``, or ``ps:0 GPU:1`` for an accelerator."""
    kind = device.rpartition("/device:")[2]
    return short(task) if kind.startswith("CPU:") or "/" in kind else f"{short(task)} {kind}"


def _site(edge: Edge) -> str:
    staged = ", staged" if edge.site.kind == "staged" else ""
    changed = "" if edge.mutability == "immutable" else f" [{edge.mutability}]"
    return f"{edge.site}{staged}{changed}"


def _or_dash(count: int) -> str:
    return str(count) if count else "–"


def _mode(name: str) -> Text:
    return Text(name, style=MODE_STYLES.get(name, ""))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title, style="bold"), title_justify="left", header_style="bold")
    _columns(table, *columns)
    return table


def _columns(table: Table, *columns: str) -> None:
    """Add columns. A name that starts with ``>`` is right-aligned."""
    for name in columns:
        if name.startswith(">"):
            table.add_column(name[1:], justify="right")
        else:
            table.add_column(name, overflow="fold")


def _row(table: Table, *cells: str | Text) -> None:
    # Text, so that [ ] in names of ops and in shapes are not taken for markup
    table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
