"""What the transport of this process did."""

import json
import re
from typing import Any

from rdma_transport import _native


def stats() -> dict[str, Any]:
    """Return the counters of this process; zeros where no ``rdma`` server was made.

    Counts are since the process began. The keys:

    ``format``
        a number that grows when a key goes or changes its meaning
    ``loaded``
        whether an ``rdma`` server was made in this process
    ``tasks``
        of the cluster, that this process is
    ``sent``, ``received``
        per path (``static``, ``dynamic``, ``inline``, ``grpc``) the number of ``tensors`` and of
        their ``bytes``
    ``data_service``
        of tf.data service, ``sent`` by a worker here and ``received`` by a reader here: the number
        of replies without an error (``elements``; the end of a sequence is one), and their
        ``bytes``
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
    ``plan``
        static placement: ``hits`` (tensors that went by a slot), ``misses`` (why others of static
        edges did not), ``promotions``, ``demotions``, ``slot_allocations`` (slots agreed on with a
        peer), ``pools``, ``pool_blocks``, ``pool_bytes`` (memory set aside now),
        ``pool_blocks_ever``, ``staged_bytes_by_site``, and per edge that this process sends
        ``edges``: ``name``, ``source``, ``destination``, ``dtype``, ``shape``, ``bytes``,
        ``class``, ``planned`` (from the graph), ``placement`` (whose memory the slots are),
        ``slots``, ``hits``, ``misses``, ``staged_bytes``, ``site`` (where its buffers are
        allocated), ``reason``
    ``fallback_reasons``
        why tensors went by gRPC, and how many
    ``errors``
        kinds of errors, and how many
    ``tracing``
        whether somebody records a timeline here
    ``peers``
        per remote ``task``, and the task here (``local``) that knows it: ``address`` (empty: no
        cluster here names it, it came of its own), ``incarnation``, ``path`` (``shm``, ``verbs``,
        ``grpc``, ``unreachable``, ``connecting``, ``idle``) and its ``reason``; ``linked``,
        ``lost`` (was linked, and is not now), ``links`` (that came up; above 1: connected anew),
        ``linked_at`` (when the last one did, in seconds since 1970, or None), ``last_error`` (why
        one ended or did not come up); ``sent`` and ``received`` as above, of which
        the totals are the sums; ``lent_tensors``; ``slots`` of static edges to it, ``agreed`` on
        and, of those in its memory, ``busy`` (not given back); and the ``ring`` for notifications
        to it: ``capacity_bytes``, ``used_bytes`` (not taken yet) and ``waiting_bytes`` (for room)

    Thread-safe; takes microseconds.
    """
    return readable(json.loads(_native.stats_json()))


# TensorFlow's numbers of the types that the fabric carries.
_TYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64",
    9: "int64", 10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16",
    16: "quint16", 17: "uint16", 18: "complex128", 19: "float16", 22: "uint32", 23: "uint64",
    24: "float8_e5m2", 25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip


def readable(stats: dict[str, Any]) -> dict[str, Any]:
    """Give the edges names for what the native library knows by number and key."""
    for edge in stats["plan"]["edges"]:
        source, _, destination, name = [*edge.pop("key").split(";"), "", "", ""][:4]
        edge["name"] = name
        edge["source"], edge["destination"] = _task(source), _task(destination)
        edge["dtype"] = _TYPES.get(edge["dtype"], f"type {edge['dtype']}")
        how = "planned from the graph" if edge["planned"] else "its shape has stayed the same"
        edge["reason"] = how if edge["class"] == "static" else "its shape is not settled"
    return stats


def _task(device: str) -> str:
    return re.sub("/replica:[0-9]+", "", device.partition("/device:")[0])
