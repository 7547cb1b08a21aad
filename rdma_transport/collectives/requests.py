"""Requests: handles of non-blocking calls."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from rdma_transport._collectives import RawRequest
from rdma_transport._fabric import FabricTimeoutError

_POLL = 0.0005  # seconds


class Request:
    """A non-blocking call. Its arrays belong to it until it is done. Thread-safe."""

    def __init__(self, raw: RawRequest | None, result: Any = None) -> None:
        self._raw, self._result = raw, result

    def test(self) -> bool:
        """Return whether it is done; ``wait()`` then returns at once."""
        return self._raw is None or self._raw.done()

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it is done, and return its result; raise its error.

        Raise ``FabricTimeoutError`` after `timeout` seconds; the call continues then.
        """
        if self._raw is not None:
            self._raw.wait(timeout)
        return self._result


class ReceiveRequest(Request):
    """A receive. Of those that match one message, the one that was started first gets it."""

    def __init__(
        self,
        posted: "list[ReceiveRequest]",
        wanted: tuple[int, int],
        take: Callable[[float | None], Any],
        probe: Callable[[], tuple[int, int, int] | None],
    ) -> None:
        super().__init__(None)
        self._posted, self._wanted, self._take, self._probe = posted, wanted, take, probe
        self._error: Exception | None = None
        self._taken = False
        posted.append(self)

    def test(self) -> bool:
        """Return whether its message has arrived."""
        while not self._taken:
            found = self._probe()
            if found is None:
                return False
            rivals = (rival for rival in self._rivals() if rival._matches(found))
            try:
                next(rivals, self)._finish(0.0)
            except TimeoutError:  # another thread was faster
                return False
        return True

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for its message. Return and raise like ``Request.wait()``."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._taken:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            rivals = self._rivals()
            if all(rival._wanted == self._wanted for rival in rivals):
                (rivals[0] if rivals else self)._finish(left)
            elif not self.test():
                if left == 0.0:
                    raise FabricTimeoutError("no message arrived")
                time.sleep(_POLL)
        if self._error is not None:
            raise self._error
        return self._result

    def _rivals(self) -> "list[ReceiveRequest]":
        """The receives that were started before and may get the same message."""
        earlier = list(self._posted)
        earlier = earlier[: earlier.index(self)] if self in earlier else []
        return [each for each in earlier if all(map(_overlap, each._wanted, self._wanted))]

    def _matches(self, found: tuple[int, int, int]) -> bool:
        return all(map(_overlap, self._wanted, found))

    def _finish(self, timeout: float | None) -> None:
        try:
            self._result = self._take(timeout)
        except TimeoutError:
            raise
        except Exception as error:
            self._error = error
        self._taken = True
        if self in self._posted:
            self._posted.remove(self)


def _overlap(one: int, other: int) -> bool:
    return one == other or -1 in (one, other)


def wait_all(requests: Iterable[Request], timeout: float | None = None) -> list[Any]:
    """Wait for all requests, and return their results; raise the first error."""
    deadline = None if timeout is None else time.monotonic() + timeout
    return [
        request.wait(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        for request in requests
    ]
