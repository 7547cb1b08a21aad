"""The data of two ranks, and both of them in the order in which one process uses them."""

from typing import Any

import numpy as np

STEPS, BATCH = 4, 8


def data_of(rank: int, size: int) -> tuple[Any, Any]:
    """The examples of a rank; rank -1: of all, in batches that are `size` times as large."""
    random = np.random.default_rng(1)
    x = random.normal(size=(STEPS, size, BATCH, 5)).astype(np.float32)
    y = x.sum(-1, keepdims=True) + 1
    if rank >= 0:
        x, y = x[:, rank], y[:, rank]
    return x.reshape(-1, 5), y.reshape(-1, 1)


def assert_equal(found: Any, expected: Any) -> None:
    """Compare the weights of two models, which were rounded in other orders."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
