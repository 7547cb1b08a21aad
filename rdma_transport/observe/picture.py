"""The status as an SVG picture of a terminal."""

import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from rdma_transport.observe.table import render

_COLUMNS = 136
_WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def draw(status: dict[str, Any], path: Path) -> None:
    """Draw the status to an SVG file. Raises ``OSError`` if it cannot be written."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(render(status))
    picture = console.export_svg(title="rdma-transport status")
    # A picture must not make its reader's browser fetch fonts; "monospace" follows them.
    path.write_text(_WEB_FONT.sub("", picture), encoding="utf-8")
