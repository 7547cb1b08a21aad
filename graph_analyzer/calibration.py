"""Finds the bandwidth and the computation that explain measured synchronous steps."""

from collections.abc import Mapping
from statistics import StatisticsError, linear_regression

from graph_analyzer.capacity import capacity
from graph_analyzer.errors import AnalysisError
from graph_analyzer.plan import Plan


def calibrate(
    model: int | Plan, servers: int, measured: Mapping[int, float]
) -> tuple[float, float]:
    """Return the bandwidth (bytes per second) and the computation (seconds).

    ``measured`` are median step times in seconds by the number of workers. The line through them is
    that of least squares: bytes of the busiest port over the bandwidth, plus the computation, which
    is taken to be the same for all workers. If the line has a negative computation, it is one
    through the origin.

    If all tasks run on one host, they share its cores and memory instead of ports. The bandwidth
    then contains all work that grows with the number of workers.

    Raises ``AnalysisError`` if fewer than two numbers of workers load the port differently, or if
    steps do not grow with the workers.
    """
    moved, seconds = [], []
    for workers, step in measured.items():
        if not 0 < step < float("inf"):
            raise AnalysisError(f"the measured step of {workers} workers is not greater than 0")
        moved.append(capacity(model, workers, servers, bandwidth=1.0).seconds_synchronous)
        seconds.append(step)
    try:
        per_byte, compute = linear_regression(moved, seconds)
    except StatisticsError:
        raise AnalysisError(
            "the bandwidth follows from measured steps of at least two numbers of workers that "
            "load the servers' ports differently; measure with more workers"
        ) from None
    if compute < 0:
        per_byte, compute = linear_regression(moved, seconds, proportional=True)
    if per_byte <= 0:
        raise AnalysisError(
            "the measured steps do not grow with the number of workers, so they tell nothing about "
            "the bandwidth; measure with more workers"
        )
    return 1 / per_byte, compute
