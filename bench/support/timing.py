"""Statistics of times whose noise may be larger than they are."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

MAX_SPREAD = 1.5  # of a median's 95 % interval, high to low, that permits a ratio


@dataclass(frozen=True)
class Summary:
    """Of samples in any one unit; `low` to `high` holds the median with about 95 % confidence."""

    median: float
    minimum: float
    p90: float
    low: float
    high: float

    @classmethod
    def from_dict(cls, values: Mapping[str, float]) -> "Summary":
        """Return the summary that `as_dict()` returned."""
        return cls(*(values[field.name] for field in fields(cls)))

    @property
    def steady(self) -> bool:
        """Whether the median is known well enough for a ratio."""
        return self.low > 0 and self.high <= MAX_SPREAD * self.low

    @property
    def resolved(self) -> bool:
        """Whether the noise leaves room for saying that this is more than nothing."""
        return self.low > 0

    def as_dict(self) -> dict[str, float | bool]:
        """Return the summary for JSON."""
        return asdict(self) | {"resolved": self.resolved}


MIN_SAMPLES = 6  # with fewer, no order statistics hold the median in 95 %


def summarize(samples: Sequence[float]) -> Summary:
    """Take at least MIN_SAMPLES samples."""
    ordered = sorted(samples)
    n = len(ordered)
    if n < MIN_SAMPLES:
        raise ValueError(f"{n} samples are too few, {MIN_SAMPLES} are needed")
    away = math.floor(n / 2 - 0.98 * math.sqrt(n))
    return Summary(
        statistics.median(ordered),
        ordered[0],
        statistics.quantiles(ordered, n=10)[-1],
        ordered[max(away - 1, 0)],
        ordered[min(n - away, n - 1)],
    )


def plain(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with summaries as dictionaries, for JSON."""
    return [
        {k: v.as_dict() if isinstance(v, Summary) else v for k, v in row.items()} for row in rows
    ]


def ratio(slow: Summary, fast: Summary, digits: int = 1) -> str:
    """Of the medians; if one is not known well enough, what it is at least, or "noisy"."""
    if slow.steady and fast.steady:
        return f"{slow.median / fast.median:.{digits}f}x"
    if 0 < fast.high < slow.low:
        return f"> {slow.low / fast.high:.{digits}f}x"
    return "noisy"
