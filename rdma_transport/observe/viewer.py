"""The interactive status: a table of peers or edges that is sorted, scrolled and filtered."""

from collections.abc import Callable
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import get_current_worker

from rdma_transport.observe import samples
from rdma_transport.observe.rows import EDGES, PEERS, Row, View
from rdma_transport.observe.samples import Sample
from rdma_transport.observe.table import counted, facts, remarks

Take = Callable[[], Sample | None]


QUIT, INTERRUPTED, ENDED = "quit", "interrupted", "ended"


class Viewer(App[str]):
    """Shows what `take()` returns, every `interval` seconds, until that is None or the user quits.

    ``run()`` returns why: ``QUIT``, ``INTERRUPTED`` (Ctrl-C) or ``ENDED``; None after an error,
    which has been printed. `document` is the last status that was shown.
    """

    CSS = """
    #title, #filter { height: 1; border: none; padding: 0 1; }
    #filter { display: none; }
    DataTable { height: 1fr; }
    #facts { height: auto; max-height: 9; padding: 0 1; border-top: solid $foreground 50%; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "interrupt", "Quit", show=False, priority=True),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "unfilter", "All", show=False),
        Binding("greater_than_sign", "sort(1)", "Sort", key_display="< >"),
        Binding("less_than_sign", "sort(-1)", "Sort", show=False),
        Binding("r", "reverse", "Reverse"),
        Binding("e", "switch", "Edges/peers"),
    ]

    def __init__(self, take: Take, interval: float, edges: bool = False) -> None:
        super().__init__()
        self.document: dict[str, Any] | None = None
        self._take = take
        self._interval = interval
        self._sample: Sample | None = None
        self._seen: set[int] = set()
        self._view = EDGES if edges else PEERS
        self._sorted = {PEERS.name: 0, EDGES.name: 0}  # by view: the column
        self._reversed = False
        self._shown: list[Row] = []

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Input(placeholder="words to find in a row", id="filter", select_on_focus=False)
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="facts")
        yield Footer()

    def on_mount(self) -> None:
        self._table.focus()
        self.take_sample()
        self.set_interval(self._interval, self.take_sample)

    @property
    def _table(self) -> "DataTable[str | Text]":
        return self.query_one(DataTable)

    @work(thread=True, exclusive=True, group="samples")
    def take_sample(self) -> None:
        """Ask the processes, which may take a while, and show their answers."""
        sample = self._take()
        if not get_current_worker().is_cancelled:
            self.call_from_thread(self._show, sample)

    def _show(self, sample: Sample | None) -> None:
        if sample is None:
            self.exit(ENDED)
            return
        self.document = samples.describe(sample, self._sample)
        self._sample = sample
        self._seen |= sample.answers.keys() | sample.silent.keys()
        self._refresh_rows()

    # --- What is shown ---

    def _refresh_rows(self, rebuild: bool = False) -> None:
        """Show the rows in order. The cursor stays on its row."""
        if self.document is None or self._sample is None:
            return
        words = self.query_one(Input).value
        column = self._sorted[self._view.name]
        rows = [row for row in self._view.rows(self.document, self._sample) if row.matches(words)]
        rows.sort(key=lambda row: row.values[column], reverse=self._reversed)
        if rebuild or not self._table.columns:
            self._replace_columns()
            self._replace_rows(rows)
        elif [row.key for row in rows] != [row.key for row in self._shown]:
            self._replace_rows(rows)
        else:
            for row in rows:
                for name, cell in zip(self._view.columns, _aligned(self._view, row), strict=True):
                    self._table.update_cell(row.key, name, cell, update_width=True)
        self._shown = rows
        self._describe(words)

    def _replace_columns(self) -> None:
        self._table.clear(columns=True)
        for number, name in enumerate(self._view.columns):
            arrow = ("▲", "▼")[self._reversed] if number == self._sorted[self._view.name] else " "
            self._table.add_column(f"{name.lstrip('>')}{arrow}", key=name)

    def _replace_rows(self, rows: list[Row]) -> None:
        before = self._selected()
        offset = self._table.scroll_offset
        self._table.clear()
        for row in rows:
            self._table.add_row(*_aligned(self._view, row), key=row.key)
        keys = [row.key for row in rows]
        if before is not None and before.key in keys:
            self._table.move_cursor(row=keys.index(before.key), scroll=False)
        self.call_after_refresh(self._table.scroll_to, offset.x, offset.y, animate=False)

    def _selected(self) -> Row | None:
        number = self._table.cursor_row
        return self._shown[number] if 0 <= number < len(self._shown) else None

    def _describe(self, words: str) -> None:
        """Update the line at the top, and the facts about the process of the selected row."""
        assert self.document is not None
        assert self._sample is not None
        alive = self._sample.answers.keys() | self._sample.silent.keys()
        parts = [f"{self._view.name}: {counted(len(self._shown), 'row')}"]
        parts += [f"filter: {words}"] if words else []
        parts += [f"process {pid} has ended" for pid in sorted(self._seen - alive)]
        parts += self._sample.silent.values()
        parts.append(f"of process {', '.join(map(str, sorted(self._sample.answers)))}")
        self.query_one("#title", Static).update(Text(" · ".join(parts), no_wrap=True))
        self._describe_selected()

    def _describe_selected(self) -> None:
        processes = self.document["processes"] if self.document is not None else []
        selected = self._selected()
        pid = selected.pid if selected is not None else None
        parts: list[RenderableType] = []
        for one in [one for one in processes if pid in (None, one["pid"])][:1]:
            parts += [Text(f"process {one['pid']}", style="bold"), facts(one)]
            parts += remarks(one)
        self.query_one("#facts", Static).update(Group(*parts))

    def on_data_table_row_highlighted(self) -> None:
        """Show the facts of the row that the cursor has come to."""
        self._describe_selected()

    # --- What the user can do ---

    async def action_quit(self) -> None:
        """Leave."""
        self.exit(QUIT)

    def action_interrupt(self) -> None:
        """Leave as other commands do on Ctrl-C."""
        self.exit(INTERRUPTED)

    def action_sort(self, step: int) -> None:
        """Sort by the next column, or by the previous one."""
        columns = len(self._view.columns)
        self._sorted[self._view.name] = (self._sorted[self._view.name] + step) % columns
        self._refresh_rows(rebuild=True)

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the column that was clicked; reverse if it was the one."""
        if event.column_index == self._sorted[self._view.name]:
            self._reversed = not self._reversed
        self._sorted[self._view.name] = event.column_index
        self._refresh_rows(rebuild=True)

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._reversed = not self._reversed
        self._refresh_rows(rebuild=True)

    def action_switch(self) -> None:
        """Show edges instead of peers, or peers again."""
        self._view = EDGES if self._view is PEERS else PEERS
        self._refresh_rows(rebuild=True)

    def action_filter(self) -> None:
        """Let the user type words; rows without them disappear."""
        field = self.query_one(Input)
        field.display = True
        field.focus()

    def action_unfilter(self) -> None:
        """Show all rows again."""
        self.query_one(Input).value = ""
        self.on_input_submitted()

    def on_input_changed(self) -> None:
        """Filter as the user types."""
        self._refresh_rows()

    def on_input_submitted(self) -> None:
        """Return to the rows."""
        self.query_one(Input).display = False
        self._table.focus()


def _aligned(view: View, row: Row) -> list[str | Text]:
    return [
        Text(str(cell), justify="right") if name.startswith(">") else cell
        for name, cell in zip(view.columns, row.cells, strict=True)
    ]
