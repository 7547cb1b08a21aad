"""What transports counted, in sums and differences."""

from collections.abc import Iterable
from typing import Any

Counts = dict[str, Any]  # numbers, and further Counts
MODES = ("static", "dynamic", "inline", "grpc")
NOTHING = {"tensors": 0, "bytes": 0}  # of a mode


def counts_of(stats: Counts) -> Counts:
    """The counters in what a task reports; not the states, names and lists."""
    kept: Counts = {}
    for name, value in stats.items():
        if isinstance(value, dict):
            kept[name] = counts_of(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            kept[name] = value
    return kept


def combine(first: Counts, second: Counts, sign: int) -> Counts:
    """The sum, or the difference, of all numbers; what one side lacks is zero there."""
    result: Counts = {}
    for name in first | second:
        one, other = first.get(name), second.get(name)
        if isinstance(one, dict) or isinstance(other, dict):
            result[name] = combine(one or {}, other or {}, sign)
        else:
            result[name] = (one or 0) + sign * (other or 0)
    return result


def summed(reports: Iterable[Counts | None]) -> Counts | None:
    """The counters of several tasks together; None if one of them has no rdma server."""
    total: Counts = {}
    for stats in reports:
        if stats is None or not stats["loaded"]:
            return None
        total = combine(total, counts_of(stats), 1)
    return total


def above_zero(counts: Counts | int) -> Counts:
    """By name, without those that are zero; a mere number is one without a name."""
    named = counts if isinstance(counts, dict) else {"all": counts}
    return {name: count for name, count in named.items() if count}


def sent_since(before: Counts | None, after: Counts | None) -> Counts | None:
    """Tensors and bytes by mode between two counts; None if one of them is."""
    if before is None or after is None:
        return None
    sent = combine(after["sent"], before["sent"], -1)
    return {mode: sent.get(mode, NOTHING) for mode in MODES}


def reasons_since(before: Counts | None, after: Counts | None) -> Counts:
    """Return the number of tensors that fell back to gRPC between two counts, by reason."""
    if before is None or after is None:
        return {}
    return above_zero(combine(after["fallback_reasons"], before["fallback_reasons"], -1))


def routes_of(name: str, stats: Counts) -> list[Counts]:
    """How a task reached its peers, as its transport says: from, to, transport, reason."""
    return [
        {
            "from": name,
            "to": peer["task"].replace("/replica:0", ""),
            "transport": peer["transport"],
            "reason": peer["reason"],
        }
        for peer in stats["peers"]
    ]
