"""Sessions in the process of one of the servers, where a training script has its own."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar, cast

from .support import python
from .support.cluster import Task

SESSION_TASK = python.module("session_task")
ANSWER_SECONDS = 600.0  # of any command; emulated hosts are slow
T = TypeVar("T")


def remote(kind: type[T], stack: ExitStack, task: Task, *arguments: Any) -> T:
    """Return what stands for one of `bench.session_task.SESSIONS` in a task of SESSION_TASK.

    `arguments` are JSON: those of its class after `stack` and `target`. `stack` closes it. Its
    methods take positional arguments, and raise RuntimeError with what they raise there.
    """
    return cast(T, _Remote(stack, task, kind.__name__, arguments))


class _Remote:
    def __init__(self, stack: ExitStack, task: Task, kind: str, arguments: Any) -> None:
        self._task = task
        self._number = self._say("open", kind, *arguments)
        stack.callback(self._say, "close", self._number)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *arguments: self._say(method, self._number, *arguments)

    def _say(self, *command: Any) -> Any:
        self._task.say(command)
        answer = self._task.read(ANSWER_SECONDS)
        if "error" in answer:
            raise RuntimeError(f"{self._task.name}: {answer['error']}")
        return answer["result"]
