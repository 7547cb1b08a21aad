"""Keep retired words out of the text that users read: documents, messages, help, JSON keys.

usage: check_words.py    (from the top of the repository; exit code 1 lists what it found)
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md")
PYTHON = ("rdma_transport/**/*.py", "graph_analyzer/**/*.py", "bench/**/*.py", "examples/**/*.py")
NATIVE = ("native/**/*.cc", "native/**/*.h", "native/**/*.pyx")
SCHEMAS = ("rdma_transport/**/*.json", "graph_analyzer/*.json", "bench/*.json")

# A pattern, and what to write instead.
RETIRED = {
    r"mend(s|ed|ing)?": "fix",
    r"reckon(s|ed|ing)?": "estimate, compute",
    r"visitors?": "client",
    r"neediest": "the task that needs the most memory",
    r"(go|goes|went|going) by gRPC": "fall back to gRPC",
    r"lent|lends?|loans?|leased?": "outstanding buffer",
    r"(give|gives|gave|given) (it |them |the \w+ )?back": "release",
    r"born at": "allocated by",
    r"it must be there": "require",
    r"kept_arrivals|late_arrivals": "unclaimed_tensors, late_tensors",
    r"peer_path": "peer_transport",
    r"serialis\w+": "serialize",
    r"colour\w*": "color",
    r"behaviour\w*": "behavior",
    r"analys(e|ed|ing)": "analyze",
    r"for ever": "forever",
    r"whoever|himself": "the task that",
}
WORDS = re.compile("|".join(rf"(?P<w{i}>\b(?:{word})\b)" for i, word in enumerate(RETIRED)))
_CPP_STRING = re.compile(r'(?<!#include )"((?:[^"\\\n]|\\.)*)"')


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """What a user can read of a file, by line number."""
    text = path.read_text()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.lineno, node.value
        return
    for number, line in enumerate(text.splitlines(), 1):
        if path.suffix in (".cc", ".h"):
            code = "" if line.lstrip().startswith(("//", "#include")) else line
            for found in _CPP_STRING.finditer(code):
                yield number, found[1]
        else:
            yield number, line


def main() -> int:
    """Print each retired word and where it is."""
    found = 0
    for pattern in (*DOCUMENTS, *PYTHON, *NATIVE, *SCHEMAS):
        for path in sorted(Path().glob(pattern)):
            for line, text in texts(path):
                for match in WORDS.finditer(text):
                    found += 1
                    better = list(RETIRED.values())[int(str(match.lastgroup)[1:])]
                    print(f"{path}:{line}: {match[0]!r} is retired; write: {better}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
