"""Sizes and ranges of sizes, as commands take them."""

import pytest

from bench.support.sizes import parse_sizes
from rdma_transport.errors import BadInputError


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64", [64]),
        ("64,4KiB", [64, 4096]),
        ("64..1KiB", [64, 256, 1024]),
        ("64…1025", [64, 256, 1024]),
        ("1…16*2", [1, 2, 4, 8, 16]),
        ("8,1..1KiB*10", [8, 1, 10, 100, 1000]),
        ("64..64*2", [64]),
    ],
)
def test_ranges_grow_by_a_factor(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text", ["", "0", "4KiB..64", "1..2..3", "64*2", "1..64*", "1..64*1", "1..64*0", "1..64*1.5"]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(BadInputError):
        parse_sizes(text)
