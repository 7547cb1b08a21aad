"""Requests: handles of non-blocking calls."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from rdma_transport._collectives import RawMessage, RawRequest


class Request:
    """A non-blocking call. Its arrays belong to it until it is done. Thread-safe."""

    def __init__(
        self,
        raw: RawRequest | RawMessage | None,
        result: Any = None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        """`finish` completes the result; the first ``wait()`` calls it."""
        self._raw, self._result, self._finish_once = raw, result, finish
        self._lock = threading.Lock()

    def test(self) -> bool:
        """Return whether it is done; ``wait()`` then returns at once."""
        return self._raw is None or self._raw.done()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it is done, and return its result; raise its error.

        Raise ``FabricTimeoutError`` after `timeout` seconds; the call continues then.
        """
        if self._raw is not None:
            self._raw.wait(timeout)
        with self._lock:
            if self._finish_once is not None:
                self._finish_once()
                self._finish_once = None
        return self._result


class ReceiveRequest(Request):
    """A receive. Of those that match one message, the one that was started first gets it."""

    def __init__(self, raw: RawMessage, convert: Callable[[Any, Any], Any]) -> None:
        super().__init__(raw)
        self._message, self._convert = raw, convert

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for its message. Return and raise like ``Request.wait()``."""
        found = self._message.wait(timeout)
        if self._result is None:
            self._result = self._convert(self._message, found)
        return self._result


def wait_all(requests: Iterable[Request], timeout: float | None = None) -> list[Any]:
    """Wait for all requests, and return their results; raise the first error."""
    deadline = None if timeout is None else time.monotonic() + timeout
    return [
        request.wait(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        for request in requests
    ]
