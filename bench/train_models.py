"""Measures a training step of the paper's models, over gRPC and over rdma, with rdma's counters.

Beside them stands the same step in one process, where the server and the workers are devices: what
rdma's step takes longer is what remains of communication.

One parameter server and two workers run as separate processes. All three run the same graph
with the same seed and take turns. Every step fetches the losses of both workers, which are compared
bit for bit. The counters of rdma cover only the measured steps, after the warm-up.

Every model has its own clusters, because variables outlive the session that created them, and two
models may use one name for different variables.

usage: python -m bench.train_models [--models alexnet,gru] [--repeat 8] [--batch 2]
           [--seconds 30] [--warm-up 6] [--json FILE]
"""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .models import MODELS, Model
from .steps import FEWEST, LOCAL, WARM_UP, WORKERS, measure_steps
from .support.counters import MODES, Counts, above_zero
from .support.exit import run_command
from .support.hosts import Layout, everything_here
from .support.machine import describe
from .support.namespaces import measured_between
from .support.options import JsonFile, Veth, choose, save
from .support.timing import Summary, summarize
from .table import percent

PROTOCOLS = ("grpc", "rdma")
SHOWN = 5  # names in the notes below the table; the JSON has all
MIB = 2**20


def traffic(difference: Counts, steps: int) -> dict[str, Any]:
    """What `steps` steps of rdma were, from the difference of the counters."""
    sent = {mode: count["bytes"] for mode, count in difference["sent"].items()}
    total = sum(sent.values())
    copied = difference["copied_bytes"]
    plan = difference.get("plan")
    staged = {
        kind: {name: count / steps / MIB for name, count in above_zero(counts).items()}
        for kind, counts in (plan or {}).items()
        if kind.startswith("staged_bytes_by_")
    }
    return {
        "mib_per_step": {mode: sent.get(mode, 0) / steps / MIB for mode in MODES},
        "total_mib_per_step": total / steps / MIB,
        "static_share": sent.get("static", 0) / total if total else 0.0,
        # What falls back to gRPC is copied too; the transport counts only its own copies.
        "not_copied_share": 1 - (copied + sent.get("grpc", 0)) / total if total else 1.0,
        "copied_mib_per_step": copied / steps / MIB,
        "inline_copied_mib_per_step": difference["inline_copied_bytes"] / steps / MIB,
        "staged_tensors": difference["staged_tensors"],
        "staged_mib_per_step": staged,
        "registrations": difference["registrations"],
        "plan": None
        if plan is None
        else {
            "hits": plan.get("hits", 0),
            "misses": above_zero(plan.get("misses", {})),
            "slot_allocations": plan.get("slot_allocations", 0),
            "promotions": plan.get("promotions", 0),
            "demotions": plan.get("demotions", 0),
        },
        "fallback_reasons": above_zero(difference.get("fallback_reasons", {})),
        "errors": above_zero(difference.get("errors", {})),
    }


def measure(
    model: Model,
    batch: int,
    repeat: int,
    seconds: float,
    warm_up: int,
    say: Callable[[str], None],
    workers: int = WORKERS,
    layout: Layout = everything_here,
) -> dict[str, Any]:
    """One model's row; times in ms."""
    done = measure_steps(
        model,
        (*PROTOCOLS, LOCAL),
        batch,
        repeat,
        seconds,
        warm_up,
        lambda what, part: say(what),
        layout,
        workers=workers,
    )
    difference = done.counted["rdma"]
    if difference is None:
        raise RuntimeError("a task runs without the plugin")
    times = {protocol: summarize(side.milliseconds) for protocol, side in done.sides.items()}
    return {
        "model": model.name,
        "variables_mib": model.mib,
        "steps": done.steps,
        "measured": done.measured,
        "ms": times,
        "ratio": times["grpc"].median / times["rdma"].median,
        "equal": done.equal,
        "finite": done.finite,
        "losses": {protocol: side.losses for protocol, side in done.sides.items()},
        **traffic(difference, done.measured + done.unmeasured),
    }


def show(rows: list[dict[str, Any]], repeat: int) -> Table:
    """Return a table of the rows; times are in ms."""
    title = f"training step of 1 parameter server and 2 workers, ms, median of {repeat}"
    table = Table(title=title)
    table.add_column("model", no_wrap=True)
    for heading in ("gRPC", "rdma", "ratio", "one\nprocess", "MiB/step", "static"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("not\ncopied", "registrations", "slot\nallocations", "equal?"):
        table.add_column(heading, justify="right")
    for row in rows:
        plan = row["plan"]
        table.add_row(
            row["model"],
            f"{row['ms']['grpc'].median:.1f}",
            f"{row['ms']['rdma'].median:.1f}",
            f"{row['ratio']:.2f}x",
            f"{row['ms'][LOCAL].median:.1f}",
            f"{row['total_mib_per_step']:.1f}",
            percent(row["static_share"]),
            percent(row["not_copied_share"]),
            str(row["registrations"]),
            "not counted" if plan is None else str(plan["slot_allocations"]),
            "yes" if row["equal"] else "[bold red]NO[/]",
        )
    return table


def notes(row: dict[str, Any], repeat: int) -> list[str]:
    """What the table has no column for, where there is any."""

    def listed(counts: Counts, form: str) -> str:
        most = sorted(counts, key=lambda name: -counts[name])
        parts = [f"{name} {counts[name]:{form}}" for name in most[:SHOWN]]
        if len(most) > SHOWN:
            parts.append(f"and {len(most) - SHOWN} more")
        return ", ".join(parts)

    modes = {mode: mib for mode, mib in row["mib_per_step"].items() if mib and mode != "static"}
    found = {"MiB/step not static": listed(modes, ".3f")}
    if row["plan"] is not None:
        found["misses of the plan"] = listed(row["plan"]["misses"], "d")
        changes = {name: row["plan"][name] for name in ("promotions", "demotions")}
        found["changes of the plan"] = listed(above_zero(changes), "d")
    for kind, staged in row["staged_mib_per_step"].items():
        found[f"MiB/step staged by {kind.removeprefix('staged_bytes_by_')}"] = listed(staged, ".3f")
    found["gRPC fallback"] = listed(row["fallback_reasons"], "d")
    found["errors"] = listed(row["errors"], "d")
    lines = [f"{row['model']}: {name}: {text}" for name, text in found.items() if text]
    if row["measured"] < repeat:
        lines.append(f"{row['model']}: only {row['measured']} steps were measured (--seconds)")
    if not row["finite"]:
        lines.append(f"{row['model']}: the loss is not finite")
    return lines


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row for JSON; times are in ms."""
    times: dict[str, Summary] = row["ms"]
    return row | {"ms": {protocol: value.as_dict() for protocol, value in times.items()}}


def main(
    models: Annotated[
        str, typer.Option(help="Train these models, separated by commas.")
    ] = ",".join(MODELS),
    repeat: Annotated[int, typer.Option(help="Measure this many steps per model.", min=FEWEST)] = 8,
    batch: Annotated[int, typer.Option(help="Set the examples per worker.", min=1)] = 2,
    seconds: Annotated[
        float,
        typer.Option(
            help=f"Start no step after this many seconds, but measure at least {FEWEST}.", min=0
        ),
    ] = 30,
    warm_up: Annotated[int, typer.Option(help="Warm up for this many steps.", min=1)] = WARM_UP,
    veth: Veth = "",
    json_file: JsonFile = None,
) -> None:
    """Print the time of a training step over both protocols and in one process, per model."""
    wanted = [MODELS[name] for name in choose(models, MODELS, "model", "--models")]
    console = Console()
    console.width = max(console.width, 116)
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    console.print(describe())
    with (
        measured_between(veth) as layout,
        console.status("", refresh_per_second=2) as status,
    ):
        for model in wanted:

            def say(what: str, name: str = model.name) -> None:
                status.update(f"{name}: {what}")

            try:
                rows.append(measure(model, batch, repeat, seconds, warm_up, say, layout=layout))
            except (tf.errors.OpError, TimeoutError, EOFError) as error:
                failed[model.name] = f"{type(error).__name__}: {error}"
    console.print(show(rows, repeat))
    console.print(
        "The columns from MiB/step on are rdma's counters of all tasks after the warm-up. Not "
        "copied: sent bytes that the transport did not copy and that did not fall back to gRPC."
    )
    for row in rows:
        for line in notes(row, repeat):
            console.print(line, markup=False)
    for name, text in failed.items():
        console.print(f"{name}: failed: {' '.join(text.split())[:400]}", markup=False)
    report = {"batch": batch, "repeat": repeat, "warm_up": warm_up}
    save(json_file, report | {"rows": [plain(row) for row in rows], "failed": failed})
    if failed or not all(row["equal"] and row["finite"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
