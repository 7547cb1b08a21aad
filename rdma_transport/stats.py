"""What the transport of this process did."""

import json
from typing import Any

from rdma_transport import _native


def stats() -> dict[str, Any]:
    """Return the counters of this process; zeros where no ``rdma`` server was made.

    Counts are since the process began. The keys:

    ``loaded``
        whether an ``rdma`` server was made in this process
    ``sent``, ``received``
        per path (``static``, ``dynamic``, ``inline``, ``grpc``) the number of ``tensors`` and of
        their ``bytes``
    ``copied_bytes``, ``staged_tensors``
        payload bytes that the transport copied beside what rides in notifications, and the tensors
        among them that were copied at the send
    ``inline_copied_bytes``
        bytes copied into and out of notifications
    ``registrations``, ``live_regions``, ``region_bytes``
        slabs ever registered with the fabric; slabs now, and their bytes
    ``lent_tensors``
        tensors of this process that a peer may still read
    ``kept_arrivals``, ``late_arrivals``
        tensors that came and that nobody asked for yet; that came after their step had ended
    ``arena``
        bytes: ``limit_bytes``, ``capacity_bytes``, ``used_bytes``; ``refused`` allocations
    ``fallback_reasons``
        why tensors went by gRPC, and how many
    ``errors``
        kinds of errors, and how many
    ``peers``
        per remote task ``task``, ``incarnation``, ``path`` (``shm``, ``grpc``, ``unreachable``,
        ``connecting``, ``idle``), ``reason``, ``lost``

    Thread-safe; takes microseconds.
    """
    result: dict[str, Any] = json.loads(_native.stats_json())
    return result
