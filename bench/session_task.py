"""A task whose process also runs the sessions of chains: see `bench.chains.RemoteChain`.

usage: python -m bench.chain_task PROTOCOL JOB INDEX CLUSTER_JSON

Besides the lines that bench/support/task.py answers, it takes lists of JSON: ["open", DEVICES,
SIZE, LENGTHS, KIND], ["seconds", NUMBER, STEPS], ["wrong", NUMBER, HOPS, STEPS] and
["close", NUMBER]. Each is answered with {"result"}, which for "open" is the number of the chain, or
with {"error"}.
"""

import itertools
import json
from contextlib import ExitStack
from typing import Any

from .chains import Chain
from .support import task


class Chains:
    """The open chains, by number."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._open: dict[int, tuple[ExitStack, Chain]] = {}

    def answer(self, target: str, line: str) -> Any:
        """Answer a line for the server with that target."""
        if not line.startswith("["):
            return task.report()
        name, *arguments = json.loads(line)
        try:
            if name == "open":
                return {"result": self._start(target, *arguments)}
            stack, chain = self._open[arguments[0]]
            if name == "close":
                stack.close()
                del self._open[arguments[0]]
                return {"result": None}
            return {"result": getattr(chain, name)(*arguments[1:])}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _start(self, target: str, *arguments: Any) -> int:
        with ExitStack() as stack:
            chain = Chain(stack, target, *arguments)
            number = next(self._numbers)
            self._open[number] = stack.pop_all(), chain
        return number


if __name__ == "__main__":
    task.run(Chains().answer)
