"""Sizes and places as people write and read them."""

import re

import typer

UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def size_name(size: int) -> str:
    for unit, factor in UNITS:
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"


def parse_size(text: str) -> int:
    """Bytes; units are binary, so that 4K, 4kb and 4KiB are one size."""
    found = re.fullmatch(r"\s*(\d+)\s*(?:([kmg])(?:i?b)?|b)?\s*", text, re.IGNORECASE)
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter(f"'{text}' is not a size such as 64, 4KiB or 1MiB")
    return int(found[1]) * 2 ** (10 * (" kmg".index((found[2] or " ").lower())))


def parse_sizes(text: str) -> list[int]:
    """Sizes with commas; A…B, or A..B, goes from A to B by factors of four."""
    sizes = []
    for part in text.split(","):
        first, *rest = re.split(r"…|\.{2,3}", part)
        size = parse_size(first)
        last = parse_size(rest[0]) if rest else size
        if last < size or len(rest) > 1:
            raise typer.BadParameter(f"'{part}' is not a range from a size to a larger one")
        while size <= last:
            sizes.append(size)
            size *= 4
    return sizes


def parse_place(text: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise typer.BadParameter(f"'{text}' is not HOST:PORT")
    return host.strip("[]"), int(port)
