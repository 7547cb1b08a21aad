"""Runs the paper's evaluation and writes its tables and plots.

usage: python -m bench.paper [--only models,convergence] [--quick] [--out docs]
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..support.exit import run_command
from ..support.machine import describe
from ..support.options import choose
from . import document, experiments, pictures

EXPERIMENTS = {name: getattr(experiments, name) for name in document.SECTIONS}


def main(
    only: Annotated[
        str, typer.Option(help="Run only these experiments, separated by commas.")
    ] = ",".join(EXPERIMENTS),
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a short version of each, as a test.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Write the page to this directory.")] = Path("docs"),
) -> None:
    """Write benchmarks.md, benchmarks.json and images/paper_*.svg to a directory.

    Results of experiments that do not run are taken from an existing benchmarks.json of the same
    machine.
    """
    chosen = choose(only, EXPERIMENTS, "experiment", "--only")
    import tensorflow as tf

    tf.compat.v1.disable_eager_execution()
    console = Console(stderr=True)
    machine = describe()
    record = out / "benchmarks.json"
    results: dict[str, Any] = {}
    if record.exists():
        before = json.loads(record.read_text())
        results = before["results"] if before["machine"] == machine else {}
    effort = experiments.QUICK if quick else experiments.Effort()
    (out / "images").mkdir(parents=True, exist_ok=True)
    for name in chosen:
        with console.status("", refresh_per_second=2) as status:
            results[name] = EXPERIMENTS[name](
                effort, lambda what, name=name: status.update(f"{name}: {what}")
            )
        pictures.draw(name, results[name], out / "images" / f"paper_{name}.svg")
        record.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
        (out / "benchmarks.md").write_text(document.write(machine, results))
        console.print(f"{name}: done")
    typer.echo(out / "benchmarks.md")
    if any(not row["equal"] for name in ("models", "scaling") for row in results.get(name, [])):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
