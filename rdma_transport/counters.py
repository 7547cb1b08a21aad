"""The table of counters in the native library, and their values in ``stats()``."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rdma_transport import _native


@dataclass(frozen=True)
class Counter:
    """One counter of a process or of a peer."""

    key: str  # in stats() or a peer of it: a dot between names; {label} is each name it takes
    kind: str  # "counter", "gauge" or "histogram"
    metric: str  # without the prefix "rdma_transport_"; empty: not exported
    meaning: str

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in the key."""
        return tuple(name.strip("{}") for name in self.key.split(".") if is_label(name))

    def values(self, stats: dict[str, Any]) -> Iterable[tuple[tuple[str, ...], Any]]:
        """Return each value and the names that its labels have. Raises if there is none.

        A value is an ``int``, or of a histogram a ``dict``: ``buckets`` has the number of durations
        up to each bound (in seconds, as text; the last is ``+Inf``), ``count`` that of all, and
        ``sum`` their sum in seconds.
        """
        found: list[tuple[tuple[str, ...], Any]] = [((), stats)]
        for name in self.key.split("."):
            if is_label(name):
                found = [((*taken, each), of[each]) for taken, of in found for each in of]
            else:
                found = [(taken, of[name]) for taken, of in found]
        return found


def is_label(name: str) -> bool:
    """Whether a part of a key is a label."""
    return name.startswith("{")


_TABLE = json.loads(_native.counters_json())
PROCESS, PEER = (tuple(Counter(**row) for row in _TABLE[scope]) for scope in ("process", "peer"))
MODES: tuple[str, ...] = tuple(_TABLE["modes"])
