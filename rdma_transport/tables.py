"""Tables for terminals of any width, and for pipes."""

from collections.abc import Iterator

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 10_000
_EMPTY = ("", "-", "–")


def make_console() -> Console:
    """Return a console for stdout. In a pipe it wraps nothing."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _ANY_WIDTH
    return console


def indented(text: Text | str, columns: int) -> Padding:
    """Return a paragraph that is indented as a whole."""
    return Padding(text, (0, 0, 0, columns), expand=False)


class Fitted:
    """A table. Where it is too wide, each row is a paragraph: its first cell, then the others."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._title, table.title = table.title, None  # which a narrow table would wrap

    def _width(self, console: Console, options: ConsoleOptions) -> int:
        return Measurement.get(console, options.update(width=_ANY_WIDTH), self._table).maximum

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the width of the table, or all that there is."""
        return Measurement(1, min(self._width(console, options), options.max_width))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield what rich prints."""
        if self._title:
            yield Text(str(self._title), style="bold")
        if self._width(console, options) <= options.max_width:
            yield self._table
            return
        names = [column.header for column in self._table.columns]
        for first, *rest in zip(*(column.cells for column in self._table.columns), strict=True):
            yield _labelled(names[0], Text(str(first), style="bold"))
            cells = [
                _labelled(name, cell)
                for name, cell in zip(names[1:], rest, strict=True)
                if str(cell) not in _EMPTY
            ]
            short = [cell for cell in cells if len(cell) < options.max_width // 2]
            long = [cell for cell in cells if cell not in short]
            yield Padding(Group(Columns(short, padding=(0, 3)), *long), (0, 0, 0, 2))


def _labelled(name: RenderableType, cell: RenderableType) -> Text:
    return Text.assemble((f"{name} ", "dim"), cell if isinstance(cell, Text) else str(cell))
