"""Short codes for sentences, so that a label of a metric has few values.

A reason in ``stats()`` is a sentence, which may name a task, a file or a number. Prometheus keeps a
time series for each value of a label, so the metrics have a code in its place.
"""

import re

OTHER = "other"

_FALLBACKS = {
    "no_plain_bytes": "a string tensor|a variant tensor|a resource handle|a type without plain",
    "data_service": "data service: ",
    "setting": "RDMA_TRANSPORT_FABRIC=grpc",
    "no_plugin": "the peer does not run the rdma_transport plugin",
    "no_fabric": "no fabric reaches it|it has no fabric",
    "secret": "it has no secret|it has a secret|its secret differs|it cannot read its own secret"
    "|it does not prove",
    "version": "it uses protocol version",
    "not_registered": "its memory cannot be registered",
    "link_broke": "the link broke",
    "peer_lost": "peer .* (is lost|has disconnected)",
    "too_long": "a key or shape too long",
    "no_memory": "no memory in the arena",
}
_RINGS = {
    "setting": ".* has RDMA_TRANSPORT_COLLECTIVES=ring",
    "no_rdma_server": ".* has no rdma server",
    "accelerators": "a group of accelerators",
    "one_member": "a group of one member",
    "several_in_a_task": "a task with several members",
}
_MISSES = {
    "unstable_address": "its buffer address is not stable",
    "no_free_slot": "no free slot",
    "no_slots_yet": "no slots agreed yet",
    "no_memory": "no memory in the arena",
}
_ERRORS = {  # which are codes already
    kind: kind
    for kind in (
        *("authentication", "checksum", "connection_refused", "fallback_forbidden"),
        "peer_silent",
    )
}
CODES = {
    "fallbacks_total": _FALLBACKS,
    "ring_reasons_total": _RINGS,
    "plan_misses_total": _MISSES,
    "errors_total": _ERRORS,
}
"""By metric: the codes, and how the sentences begin that each stands for."""


def code_of(metric: str, sentence: str) -> str:
    """Return the code of a reason that `metric`, one of ``CODES``, counts."""
    found = (code for code, start in CODES[metric].items() if re.match(start, sentence))
    return next(found, OTHER)


def codes(metric: str) -> tuple[str, ...]:
    """Return all codes of a metric; none for one whose labels are few anyway."""
    return (*CODES[metric], OTHER) if metric in CODES else ()
