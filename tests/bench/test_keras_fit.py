"""Mirrored workers get the same losses over both protocols, also more than two."""

import pytest

from bench import keras_fit

pytestmark = pytest.mark.timeout(240)


def test_losses_of_three_mirrored_workers_are_equal() -> None:
    row = keras_fit.measure("mirrored", 3, width=32, turns=2, epochs=3, steps=1, batch=4)
    assert row["equal"]
    assert row["finite"]
    assert len(set(row["losses"]["rdma"])) == 1 + 2 * 3  # none is the same as another
    assert row["steps"] == 2 + 2 * 4
    assert row["mib_per_step"]["static"] + row["mib_per_step"]["inline"] > 0
    assert row["mib_per_step"]["grpc"] == 0
    assert min(row["pss_mib"].values()) > 0
    shown = keras_fit.show([row], 3, 6, 4)
    assert shown.row_count == 1
