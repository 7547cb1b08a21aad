"""Mirrored workers get the same losses over both protocols, also more than two."""

import pytest

from bench import keras_fit

pytestmark = pytest.mark.timeout(240)


def test_losses_of_three_mirrored_workers_are_equal() -> None:
    grpc, rdma = keras_fit.measure("mirrored", 3, width=32, turns=2, epochs=3, steps=1, batch=4)
    assert (grpc.wrong, rdma.wrong) == (0, 0)
    assert len(set(rdma.series["losses"])) == 1 + 2 * 3  # none is the same as another
    assert rdma.more["steps"] == 2 + 2 * 4
    assert rdma.more["MiB/step static"] + rdma.more["MiB/step inline"] > 0
    assert rdma.more["MiB/step grpc"] == 0
    assert min(grpc.more["PSS, MiB"], rdma.more["PSS, MiB"]) > 0
