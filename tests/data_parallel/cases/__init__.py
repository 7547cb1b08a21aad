"""Programs of cases. Each runs in one process, and on two ranks."""

import re
from pathlib import Path


def names_of(program: str) -> list[str]:
    """Return the names of a program's cases, without running it."""
    text = (Path(__file__).parent / f"{program}.py").read_text()
    return re.findall(r"^@case\ndef (\w+)", text, re.MULTILINE)
