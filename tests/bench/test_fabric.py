"""`rdma-transport bench fabric`: what it measures over each fabric."""

from bench.fabric import fabric as measured
from bench.where import Where


def test_each_fabric_is_measured(fabric: str) -> None:
    result = measured(Where(), [64, 4096, 16384], iterations=20, rounds=2)
    assert [route["transport"] for route in result.routes] == [fabric]
    rows = {(row.test, row.bytes): row for row in result.rows}
    for size in (64, 4096, 16384):
        assert (("memcpy", size) in rows) == (fabric == "shm")
        for test in ("write_bw", "read_bw"):
            assert (rows[test, size].gbps or 0) > 0
        for test in ("write_lat", "read_lat", "notify_lat"):
            times = rows[test, size].times
            assert times is not None
            assert times.min is not None
            assert times.max is not None
            assert 0 < times.min <= times.p50 <= times.max
            assert times.p99 is None  # 20 samples do not reach beyond it
    assert (rows["notify_rate", 64].per_second or 0) > 0
    assert result.wrong == 0
