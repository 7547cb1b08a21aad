"""The sizes of the models, counted from what they build.

usage: python -m bench.models
"""

from rich.console import Console
from rich.table import Table

from bench.models import MODELS
from bench.models.training import declared

MIB = 2**20


def main() -> None:
    table = Table(title="variables of the models")
    for heading in ("", "variables", "MiB", "largest variable", "its MiB"):
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
    main()
