"""Sessions in the process of one of the servers, where a training script has its own."""

from contextlib import ExitStack
from typing import Any, ClassVar

from .support import python
from .support.cluster import Task

SESSION_TASK = python.module("session_task")
ANSWER_SECONDS = 600.0  # of any command; emulated hosts are slow


class RemoteSession:
    """A session in the process of a task of SESSION_TASK.

    `arguments` are JSON: those of its class after `stack` and `target`. `stack` closes it.
    """

    kind: ClassVar[type]
    """Its class, which is one of `bench.session_task.SESSIONS`."""

    def __init__(self, stack: ExitStack, task: Task, *arguments: Any) -> None:
        self._task = task
        self._number = self._say("open", self.kind.__name__, *arguments)
        stack.callback(self.call, "close")

    def call(self, method: str, *arguments: Any) -> Any:
        """Return what a method of it does. Raise RuntimeError with what it raises."""
        return self._say(method, self._number, *arguments)

    def _say(self, *command: Any) -> Any:
        self._task.say(command)
        answer = self._task.read(ANSWER_SECONDS)
        if "error" in answer:
            raise RuntimeError(f"{self._task.name}: {answer['error']}")
        return answer["result"]
