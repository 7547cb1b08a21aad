"""Sizes as people write and read them."""

import re
from collections.abc import Iterator

from rdma_transport import units
from rdma_transport.errors import BadInputError

UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def size_name(size: int) -> str:
    """Return a number of bytes in the largest unit that fits."""
    for unit, factor in UNITS:
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"


def parse_size(text: str) -> int:
    """Parse a size of at least one byte as `rdma_transport.units` does."""
    size = units.parse_size(text)
    if size == 0:
        raise BadInputError(f"the size {text!r} is less than 1 byte")
    return size


def parse_sizes(text: str) -> list[int]:
    """Sizes with commas; A…B, or A..B, goes from A to B by factors of four, A…B*2 of two."""
    return [size for part in text.split(",") for size in _range(part)]


def _range(text: str) -> Iterator[int]:
    ends, star, factor = text.partition("*")
    first, *rest = re.split(r"…|\.{2,3}", ends)
    size = parse_size(first)
    last = parse_size(rest[0]) if rest else size
    if last < size or len(rest) > 1 or (star and not rest):
        raise BadInputError(f"{text!r} is not a range from a size to a larger one")
    if star and not re.fullmatch(r"\s*0*([2-9]|[1-9]\d+)\s*", factor, re.ASCII):
        raise BadInputError(f"{text!r} grows by {factor!r}; give an integer of at least 2")
    while size <= last:
        yield size
        size *= int(factor or 4)
