"""An extension of Griffe: turns the docstrings' reStructuredText into Markdown.

They use two things that Markdown writes otherwise: `::` before a block of code, and a term with its
meaning indented below.
"""

import re
from typing import Any

import griffe

TERM = re.compile(r"^(?P<term>``.*``)\n    (?=\S)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Converts every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace the text of the object's docstring."""
        if obj.docstring:
            text = re.sub(r"::$", ":", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = TERM.sub(r"\n\g<term>\n:   ", text)
