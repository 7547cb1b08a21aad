"""The distribution that is set."""

from typing import Any

import rdma_transport.tensorflow as rt
from rdma_transport.collectives.membership import is_elastic
from rdma_transport.tensorflow.parallel import not_now

_current: list[Any] = [None]


def distribution() -> Any:
    """Return the distribution that is set, or None."""
    return _current[0]


def choose(value: Any) -> None:
    """Set the distribution."""
    _current[0] = value


def applies() -> bool:
    """Return whether what is done now concerns several ranks."""
    if distribution() is None or not_now():
        return False
    return is_elastic() or rt.world().size > 1
