"""Ranks of elastic jobs that are lost: how the others notice."""

import re

import tensorflow as tf

from rdma_transport.errors import HorovodInternalError

# What collectives say, in TensorFlow's errors too, when a rank is lost or has left.
_LOSS = re.compile(r"\brank \d+ (is gone|left)\b|is not a member of group \d+, or has left it")


def is_loss(error: BaseException) -> bool:
    """Return whether an error of a collective says that a rank is lost, or has left the others."""
    if isinstance(error, HorovodInternalError):
        return True
    of_collective = isinstance(error, (tf.errors.OpError, ConnectionError))
    return of_collective and bool(_LOSS.search(str(error)))
