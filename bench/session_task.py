"""A task whose process also runs sessions: see `bench.remote_session.remote`.

usage: python -m bench.session_task PROTOCOL JOB INDEX CLUSTER_JSON

Besides the lines that bench/support/task.py answers, it takes lists of JSON: ["open", NAME,
ARGUMENT...] makes one of SESSIONS, [METHOD, NUMBER, ARGUMENT...] calls a method of it, and
["close", NUMBER] closes it. Each is answered with {"result"}, which for "open" is the number, or
with {"error"}.
"""

import itertools
import json
from contextlib import ExitStack
from typing import Any

from .alternation import Alternation
from .chains import Chain
from .support import task

SESSIONS = {kind.__name__: kind for kind in (Alternation, Chain)}


class Sessions:
    """The open sessions, by number."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._open: dict[int, tuple[ExitStack, Any]] = {}

    def answer(self, target: str, line: str) -> Any:
        """Answer a line for the server with that target."""
        if not line.startswith("["):
            return task.report()
        name, *arguments = json.loads(line)
        try:
            if name == "open":
                return {"result": self._start(target, *arguments)}
            stack, session = self._open[arguments[0]]
            if name == "close":
                stack.close()
                del self._open[arguments[0]]
                return {"result": None}
            return {"result": getattr(session, name)(*arguments[1:])}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _start(self, target: str, name: str, *arguments: Any) -> int:
        with ExitStack() as stack:
            session = SESSIONS[name](stack, target, *arguments)
            number = next(self._numbers)
            self._open[number] = stack.pop_all(), session
        return number


if __name__ == "__main__":
    task.run(Sessions().answer)
