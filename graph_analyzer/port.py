"""A port that transfers share equally, in simulated time."""

from collections import deque
from collections.abc import Generator
from typing import Any

ROUNDING = 1e-9  # of a transfer: what is left then is an error of floating-point numbers


class SharedPort:
    """One direction of the servers' ports, for transfers of one size: processor sharing.

    ``alone`` is how many seconds a transfer takes if there is no other. ``share`` is how many of
    them the busiest server's port works on it: n transfers at once take n ``share`` seconds, but
    not less than ``alone``. Both are greater than 0.

    Transfers of one size that share equally end in the order in which they began, so an arrival
    costs constant time, whatever the number of transfers.
    """

    def __init__(self, env: Any, alone: float, share: float) -> None:
        self._env = env
        self._alone, self._share = alone, share
        self._active: deque[tuple[float, Any]] = deque()  # the progress at which it ends, its event
        self._progress = 0.0  # of a transfer that began with the first active one, in transfers
        self._updated = 0.0
        self.crowded = 0.0  # seconds so far in which a server's port was the limit

    def transfer(self) -> Any:
        """Begin a transfer; return the event of its end."""
        self._update()
        end = self._env.event()
        self._active.append((self._progress + 1, end))
        if len(self._active) == 1:
            self._env.process(self._serve())
        return end

    @property
    def _seconds(self) -> float:
        """How long a transfer takes with those that are active now."""
        return max(self._alone, len(self._active) * self._share)

    def _update(self) -> None:
        elapsed, self._updated = self._env.now - self._updated, self._env.now
        if self._active:
            self._progress += elapsed / self._seconds
            if self._seconds > self._alone:
                self.crowded += elapsed

    def _serve(self) -> Generator[Any, Any, None]:
        while self._active:
            self._update()
            left = self._active[0][0] - self._progress
            wait = left * self._seconds
            if left > ROUNDING and self._env.now + wait > self._env.now:
                # Transfers that begin meanwhile only delay the end: then it waits once more.
                yield self._env.timeout(wait)
            else:
                self._active.popleft()[1].succeed()
        self._progress = 0.0
