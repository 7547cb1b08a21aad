"""Prints the hosts, the table of verdicts, and what to do where one is not PASS."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from rdma_transport.doctor.report import STYLES, summary
from rdma_transport.doctor.result import FAIL, PLACES, WARN, Result
from rdma_transport.qualify.context import Context
from rdma_transport.tables import Fitted, indented, make_console


def show(context: Context, results: Sequence[Result], seconds: float) -> None:
    """Print a report to stdout."""
    console = make_console()
    for name, each in zip(context.hosts.names, context.descriptions, strict=True):
        console.print(f"{name} ({each['address']}): {each['device']}")
    table = Table()
    for heading in ("claim", "verdict", "figure"):
        table.add_column(heading)
    for result in results:
        verdict = Text(result.status, STYLES[result.status])
        table.add_row(result.name, verdict, result.found)
    console.print(Fitted(table))
    for result in results:
        if result.status not in (WARN, FAIL):
            continue
        console.print(Text(f"{result.name}: {result.why}"))
        for place in sorted(result.fix, key=PLACES.index):
            console.print(indented(Text(f"{place}: {result.fix[place]}"), 2))
    console.print(Text.assemble(summary(results), f", in {seconds:.0f} s"))
