"""The command ``rdma-transport``."""

from bench import cli as bench
from graph_analyzer import cli as graph_analyzer
from rdma_transport.config import config
from rdma_transport.doctor.command import doctor
from rdma_transport.info import info
from rdma_transport.observe import cli as observe

app = graph_analyzer.make_app("One-sided tensor transport for stock TensorFlow.")
app.command("plan")(graph_analyzer.plan)
app.command("capacity")(graph_analyzer.capacity)
app.command("advice")(graph_analyzer.advice)
app.command("doctor")(doctor)
app.command("info")(info)
app.command("config")(config)
app.add_typer(bench.app, name="bench")
app.command("status")(observe.status)
app.command("metrics")(observe.metrics)
app.command("timeline")(observe.timeline)


@app.callback()
def _group() -> None:
    # keeps the commands' names needed, however many there are
    pass


def main() -> None:
    """Run the command line; exit code 2 for bad input, 130 after Ctrl-C."""
    graph_analyzer.run(app, "rdma-transport")


if __name__ == "__main__":
    main()
