"""Ranks of elastic jobs that are lost: how the others notice, and how they connect again."""

import re
from collections.abc import Callable

import tensorflow as tf

import rdma_transport.tensorflow as rt
from rdma_transport.collectives.membership import is_elastic, membership
from rdma_transport.errors import HorovodInternalError
from rdma_transport.fabric import FabricError

_NEWS = 5.0  # seconds, for the launcher to say that a rank has ended
# What collectives say, in TensorFlow's errors too, when a rank is lost or has left.
_LOSS = re.compile(r"\brank \d+ (is gone|left)\b|is not a member of group \d+, or has left it")


def is_loss(error: BaseException) -> bool:
    """Return whether an error of a collective says that a rank is lost, or has left the others."""
    if isinstance(error, HorovodInternalError):
        return True
    of_collective = isinstance(error, (tf.errors.OpError, ConnectionError))
    return of_collective and bool(_LOSS.search(str(error)))


def until_none_is_lost(connect: Callable[[], None]) -> None:
    """Call a function that connects, again each time that a rank is lost meanwhile."""
    while True:
        try:
            return connect()
        except FabricError:
            rt.close()
            if not (is_elastic() and membership().has_lost(_NEWS)):
                raise
