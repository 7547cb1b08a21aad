"""The order in which what is compared takes turns."""

from itertools import pairwise

from bench.support.turns import rounds


def test_each_round_has_all_in_another_order() -> None:
    names = list(rounds("abcd", 12))
    orders = ["".join(names[i : i + 4]) for i in range(0, 48, 4)]
    assert all(sorted(order) == list("abcd") for order in orders)
    assert list(rounds("abcd", 12)) == names
    for name in "abcd":
        assert len({after for before, after in pairwise(names) if before == name}) >= 3
