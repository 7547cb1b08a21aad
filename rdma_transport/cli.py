"""The command ``rdma-transport``."""

import os
import sys

import typer

from graph_analyzer import cli as graph_analyzer

app = typer.Typer(
    help="One-sided tensor transport for stock TensorFlow.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("plan")(graph_analyzer.plan)
app.command("capacity")(graph_analyzer.capacity)
app.command("advice")(graph_analyzer.advice)


@app.callback()
def _group() -> None:
    # keeps the commands' names needed, however many there are
    pass


def main() -> None:
    """Run the command line; exit code 2 for bad input, 130 after Ctrl-C."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        app(prog_name="rdma-transport")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
