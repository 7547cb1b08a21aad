"""The command ``rdma-transport``."""

from typing import Annotated

import typer

from graph_analyzer import cli as graph_analyzer
from rdma_transport import __version__
from rdma_transport.bench import cli as bench  # the folder bench, as pyproject.toml installs it
from rdma_transport.command_line import make_app, run
from rdma_transport.config import config
from rdma_transport.doctor.command import doctor
from rdma_transport.info import info
from rdma_transport.observe import cli as observe
from rdma_transport.qualify.command import qualify
from rdma_transport.run import run as run_ranks

app = make_app("One-sided tensor transport for stock TensorFlow.", add_completion=True)
for before_a_job in (doctor, qualify, info, config):
    app.command()(before_a_job)
for beside_a_job in (observe.status, observe.metrics, observe.timeline):
    app.command()(beside_a_job)
app.command("run", context_settings={"allow_interspersed_args": False})(run_ranks)
app.add_typer(bench.app, name="bench")
for about_a_graph in (graph_analyzer.plan, graph_analyzer.capacity):
    app.command()(about_a_graph)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rdma_transport {__version__}")
        raise typer.Exit


@app.callback()
def _group(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. Exits with 2 for bad input and with 130 after Ctrl-C."""
    run(app, "rdma-transport")


if __name__ == "__main__":
    main()
