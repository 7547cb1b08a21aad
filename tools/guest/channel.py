"""The host's end of the line to a guest's agent."""

import itertools
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

Message = dict[str, Any]


class LostError(RuntimeError):
    """The guest ended, or does not answer."""


class Channel:
    """Asks and waits for the answer; several threads may ask at once."""

    def __init__(self, line: socket.socket, diagnosis: Callable[[], str]) -> None:
        self.line, self.diagnosis = line, diagnosis
        self.numbers = itertools.count()
        self.waiting: dict[int, Future[Message]] = {}
        self.lock = threading.Lock()
        self.lost = False
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        with self.line.makefile("rb") as answers:
            try:
                for answer in answers:
                    message = json.loads(answer)
                    with self.lock:
                        waiting = self.waiting.pop(message["id"], None)
                    if waiting:
                        waiting.set_result(message)
            except (OSError, ValueError):
                pass
        with self.lock:
            self.lost = True
            for waiting in self.waiting.values():
                waiting.set_exception(LostError("the guest ended\n" + self.diagnosis()))
            self.waiting.clear()

    def ask(self, op: str, seconds: float = 30, **arguments: Any) -> Message:
        number, answer = next(self.numbers), Future[Message]()
        request = json.dumps({"id": number, "op": op, **arguments}) + "\n"
        with self.lock:
            if self.lost:
                raise LostError("the guest ended\n" + self.diagnosis())
            self.waiting[number] = answer
            try:
                self.line.sendall(request.encode())
            except OSError as error:
                del self.waiting[number]
                raise LostError(f"{error}\n{self.diagnosis()}") from error
        try:
            message = answer.result(seconds)
        except FutureTimeoutError:
            message = {"error": None}
        if "error" not in message:
            return message
        if message["error"] is not None:
            raise OSError(message["error"])
        with self.lock:
            self.waiting.pop(number, None)
        raise LostError(f"the guest has not answered for {seconds} s\n{self.diagnosis()}")

    def close(self) -> None:
        self.line.close()
