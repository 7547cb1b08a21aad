"""The status as an SVG picture of a terminal."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from rdma_transport.observe.table import render

_COLUMNS = 136


def draw(status: dict[str, Any], path: Path) -> None:
    """Draw the status to an SVG file. Raises ``OSError`` if it cannot be written."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(render(status, _COLUMNS))
    path.write_text(console.export_svg(title="rdma-transport status"), encoding="utf-8")
