"""Parses and formats sizes, bandwidths and times, and shortens names of tasks."""

import math
import re

from rdma_transport.errors import BadInputError

_SIZES = {"": 1, "b": 1} | {
    prefix + unit: base ** (power + 1)
    for power, prefix in enumerate("kmgt")
    for unit, base in (("ib", 1024), ("i", 1024), ("b", 1000), ("", 1024))
}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-zµ/]*)\s*", re.ASCII)
_LONGEST_TEXT = 64
_MAX_BYTES = 2**62


def parse_size(text: str | int) -> int:
    """Return the bytes of a size such as ``4GiB``, ``512M``, ``1.5GB`` or ``4096``.

    ``KiB``, ``K`` and ``Ki`` are 1024 bytes, ``KB`` is 1000. Raises ``BadInputError``.
    """
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise BadInputError(f"{text!r} is not a size; give a number of bytes, or such as '4GiB'")
    size = text if isinstance(text, int) else _size_in(text)
    if not 0 <= size <= _MAX_BYTES:
        raise BadInputError(f"the size {text!r} is out of range (0 to 4 EiB)")
    return int(size)


def _size_in(text: str) -> float:
    number, unit = _split(text, "a size such as 4GiB, 512MiB or 4096")
    scale = _SIZES.get(unit.lower())
    if scale is None:
        raise BadInputError(f"{text!r}: unknown unit {unit!r}; use B, KiB, MiB, GiB or TiB")
    return number * scale


def parse_bandwidth(text: str) -> float:
    """Return bytes per second; ``100Gbit``, ``100Gbps``, ``100Gbit/s`` and ``12.5GB/s`` are equal.

    Prefixes are decimal, as on the labels of network cards; ``GiB/s`` is 2**30 bytes per second.
    Raises ``BadInputError``.
    """
    number, unit = _split(text, "a bandwidth such as 100Gbit or 12.5GB/s")
    match = re.fullmatch(r"([KMGT]?)(i?)(bit|bps|b|B)(?:/s)?", unit, re.ASCII)
    if match is None:
        raise BadInputError(f"{text!r}: unknown unit {unit!r}; use Gbit (bits) or GB/s (bytes)")
    prefix, binary, what = match.groups()
    scale = (1024 if binary else 1000) ** " KMGT".index(prefix or " ")
    rate = number * scale / (1 if what == "B" else 8)
    if rate <= 0 or not math.isfinite(rate):
        raise BadInputError(f"the bandwidth {text!r} is not greater than 0")
    return rate


def parse_seconds(text: str) -> float:
    """Return the seconds of a time such as ``80ms``, ``5us`` or ``1.5s``. Raises BadInputError."""
    number, unit = _split(text, "a time such as 80ms, 5us or 1.5s")
    if unit not in _TIMES:
        raise BadInputError(f"{text!r}: unknown unit {unit!r}; use s, ms, us or ns")
    return number * _TIMES[unit]


def _split(text: str, wanted: str) -> tuple[float, str]:
    match = _NUMBER_AND_UNIT.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        raise BadInputError(f"{text[:_LONGEST_TEXT]!r} is not {wanted}")
    return float(match[1]), match[2]


def format_bytes(count: float | None) -> str:
    """Return ``12.25 MiB`` or ``40 B``; ``?`` for ``None``."""
    if count is None:
        return "?"
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        # the larger unit already where two decimals would round up to 1024.00
        if count >= scale - scale / 2**10 / 200:
            return f"{count / scale:,.2f} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """Return ``1.50 s``, ``12.34 ms`` or ``4.50 µs``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        # the larger unit already where rounding would reach it
        if seconds >= scale * (1 - 5e-6):
            return f"{seconds / scale:,.2f} {unit}"
    return f"{seconds * 1e6:.2f} µs"


def format_bandwidth(rate: float) -> str:
    """Return a number of bytes per second as ``100 Gbit/s``."""
    return f"{rate * 8 / 1e9:g} Gbit/s"


def short(task: str) -> str:
    """Return ``ps:0`` for ``/job:ps/task:0``; other names unchanged."""
    parts = dict(part.split(":", 1) for part in task.split("/") if ":" in part)
    return f"{parts['job']}:{parts['task']}" if "job" in parts and "task" in parts else task
