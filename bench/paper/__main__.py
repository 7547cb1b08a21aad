"""Runs the paper's evaluation and writes its tables and plots.

usage: python -m bench.paper [--only models,convergence] [--quick] [--out docs]
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from ..report import Result
from ..support.exit import run_command, say
from ..support.machine import describe
from ..support.options import choose
from ..support.progress import shown
from ..where import Where
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
    machine = describe()
    record = out / "benchmarks.json"
    results: dict[str, Result] = {}
    if record.exists():
        before = json.loads(record.read_text())
        if before["machine"] == machine:
            results = {name: Result.from_dict(one) for name, one in before["results"].items()}
    effort = experiments.QUICK if quick else experiments.Effort()
    (out / "images").mkdir(parents=True, exist_ok=True)
    for name in chosen:
        with shown() as (bar, _):
            results[name] = EXPERIMENTS[name](effort, Where(bar=bar))
        pictures.draw(name, results[name].rows, out / "images" / f"paper_{name}.svg")
        plain = {each: result.as_dict() for each, result in results.items()}
        record.write_text(json.dumps({"machine": machine, "results": plain}, indent=1) + "\n")
        (out / "benchmarks.md").write_text(document.write(machine, results))
        say(f"{name}: done")
    typer.echo(out / "benchmarks.md")
    if any(result.wrong for result in results.values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(main)
