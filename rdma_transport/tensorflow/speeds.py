"""How fast the ranks reduce, gather and multiply, measured once by all of them together."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from rdma_transport import processor
from rdma_transport.tensorflow.groups import communicator, world
from rdma_transport.tensorflow.operations import all_gather, all_reduce

_REDUCED = 16 << 20  # bytes
_GATHERED = 1 << 20  # bytes of each rank
_ROWS, _COLUMNS = 32, 2048  # of as many rows more: writing the product costs the same
_TURNS = 5  # the first ones touch new memory, also that of other ranks


@dataclass(frozen=True)
class Speeds:
    """Of the slowest rank."""

    reduce: float
    """Seconds for each byte of a tensor that is reduced over the ranks."""
    gather: float
    """Seconds for each byte that a rank gets from the others."""
    multiply: float
    """Seconds for each multiplication and addition that more rows add to a product of matrices."""


@dataclass
class _Found:
    communicator: Any = None
    speeds: Speeds | None = None
    processors: list[Any] | None = None


_lock = threading.Lock()
_found = _Found()


def measured() -> Speeds | None:
    """Return the speeds of the world; None if its ranks may not compute a product in equal bits.

    The first call takes some milliseconds, and waits for that of all other ranks.
    """
    with _lock:
        if not _alike():
            return None
        if _found.speeds is None:
            own = _measure()
            every = communicator().all_gather_object(own)
            _found.speeds = Speeds(*(max(each) for each in zip(*every, strict=True)))
        return _found.speeds


def require_alike() -> None:
    """Raise ``ValueError`` unless all ranks compute a product in equal bits."""
    with _lock:
        if _alike():
            return
        assert _found.processors is not None
        other = next(i for i, p in enumerate(_found.processors) if p != _found.processors[0])
        raise ValueError(
            "RDMA_TRANSPORT_GRADIENTS=factors needs ranks that compute alike, and rank 0 runs on "
            f"{_found.processors[0]}, rank {other} on {_found.processors[other]}: use auto or dense"
        )


def _alike() -> bool:
    """Return whether all ranks have equal processors, threads and versions of TensorFlow."""
    made = communicator()
    if _found.communicator is not made:
        _found.communicator, _found.speeds = made, None
        _found.processors = made.all_gather_object(_processor())
    assert _found.processors is not None
    return all(each == _found.processors[0] for each in _found.processors)


def _processor() -> str:
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    threads = threads or len(os.sched_getaffinity(0))
    return f"{processor.model()} with {threads} threads and TensorFlow {tf.__version__}"


def _measure() -> tuple[float, float, float]:
    others = max(world().size - 1, 1)
    of_sums = _seconds(
        lambda: tf.zeros([_REDUCED // 4]),
        lambda given: all_reduce(given, name="rdma_transport/speed_of_sums"),
    )
    of_gathering = _seconds(
        lambda: tf.zeros([_GATHERED // 4]),
        lambda given: all_gather(given, name="rdma_transport/speed_of_gathering"),
    )
    first, both = _seconds_of_product(_ROWS), _seconds_of_product(2 * _ROWS)
    return (
        of_sums / _REDUCED,
        of_gathering / (_GATHERED * others),
        max(both - first, 0.1 * first) / (_ROWS * _COLUMNS**2),
    )


def _seconds_of_product(rows: int) -> float:
    return _seconds(
        lambda: tf.random.uniform([rows, _COLUMNS]),
        lambda given: tf.matmul(given, given, transpose_a=True),
    )


def _seconds(give: Callable[[], Any], call: Callable[[Any], Any]) -> float:
    """Return the shortest time in which an operation runs."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        with tf.init_scope(), tf.device("CPU"):
            given = give()
            return _shortest(lambda: call(given))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        called = call(give()).op
        return _shortest(lambda: session.run(called))


def _shortest(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
