"""Prints the sizes of the models, computed from their graphs.

usage: python -m bench.models
"""

from rich.console import Console
from rich.table import Table

from ..support.exit import run_command
from . import MODELS
from .training import declared

MIB = 2**20


def main() -> None:
    """Print the number and the size of the variables of each model."""
    table = Table(title="variables of the models")
    for heading in ("", "variables", "MiB", "largest variable", "largest, MiB"):
        table.add_column(heading, justify="left" if not heading else "right")
    for model in MODELS.values():
        variables = declared(model)
        largest = max(variables, key=lambda variable: variable.bytes)
        table.add_row(
            model.name,
            str(len(variables)),
            f"{sum(variable.bytes for variable in variables) / MIB:.2f}",
            largest.name,
            f"{largest.bytes / MIB:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    run_command(main)
