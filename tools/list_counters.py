"""Write the tables of docs/counters.md from the table of counters in the native library.

usage: list_counters.py    (from the top of the repository, after `make venv`)
"""

from collections.abc import Iterable
from pathlib import Path

from rdma_transport.counters import PEER, PROCESS, Counter

PAGE = Path(__file__).parent.parent / "docs" / "counters.md"
TABLES = {"## Of a process\n": PROCESS, "## Of a peer\n": PEER}


def listed(page: str) -> str:
    """Return the page with the tables of this version."""
    text = page.partition("## ")[0]
    for title, counters in TABLES.items():
        text += f"{title}\n| key | kind | metric | meaning |\n|---|---|---|---|\n"
        text += "".join(_rows(counters)) + "\n"
    return text.rstrip("\n") + "\n"


def _rows(counters: Iterable[Counter]) -> Iterable[str]:
    for counter in counters:
        metric = f"`{counter.metric}`" if counter.metric else "–"
        yield f"| `{counter.key}` | {counter.kind} | {metric} | {counter.meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(listed(PAGE.read_text()))
