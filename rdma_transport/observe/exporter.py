"""What running tasks do as metrics for Prometheus: at an address, as text, or in a file."""

import ipaddress
import operator
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    generate_latest,
    start_http_server,
    write_to_textfile,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rdma_transport import live
from rdma_transport.observe.samples import short, take

FILE_NAME = "rdma_transport.prom"
_PREFIX = "rdma_transport_"
_OF_PROCESS = ("pid", "task")
_OF_PEER = (*_OF_PROCESS, "peer")
_WAYS = ("sent", "received")

# name: (where it is in the answer, what it says); a counter's name ends with _total
_WHOLE = {
    "registrations_total": ("registrations", "Memory slabs ever registered. Steady jobs add none."),
    "regions": ("live_regions", "Registered memory slabs."),
    "region_bytes": ("region_bytes", "Bytes of registered memory slabs."),
    "arena_used_bytes": ("arena.used_bytes", "Bytes of tensors in registered memory."),
    "arena_limit_bytes": ("arena.limit_bytes", "Most bytes that may be registered for tensors."),
    "arena_refused_total": ("arena.refused", "Allocations that found no room in the arena."),
    "copied_bytes_total": ("copied_bytes", "Bytes copied beside what rides in notifications."),
    "staged_tensors_total": ("staged_tensors", "Tensors that were copied at the send."),
    "plan_hits_total": ("plan.hits", "Tensors that went by a slot agreed on before."),
    "plan_promotions_total": ("plan.promotions", "Edges that were made static."),
    "plan_demotions_total": ("plan.demotions", "Edges that ceased to be static."),
    "slot_allocations_total": ("plan.slot_allocations", "Slots ever agreed on with a peer."),
    "waiting_arrivals": ("kept_arrivals", "Tensors that came and nobody has asked for yet."),
    "late_arrivals_total": ("late_arrivals", "Tensors that came after their step had ended."),
}
_NAMED = {
    "plan_misses_total": ("plan.misses", "reason", "Tensors of static edges that had no slot."),
    "fallbacks_total": ("fallback_reasons", "reason", "Tensors that went by gRPC, and why."),
    "errors_total": ("errors", "kind", "Errors of the transport."),
}
_PEER = {
    "peer_links_total": ("links", "Links to the peer that came up; more than one: anew."),
    "peer_lent_tensors": ("lent_tensors", "Tensors that the peer may still read."),
    "peer_slots": ("slots.agreed", "Slots of static edges to the peer."),
    "peer_slots_busy": ("slots.busy", "Slots at the peer that it has not given back."),
    "peer_ring_bytes": ("ring.capacity_bytes", "Room for notifications to the peer."),
    "peer_ring_used_bytes": ("ring.used_bytes", "Notifications that the peer has not taken."),
    "peer_ring_waiting_bytes": ("ring.waiting_bytes", "Notifications that wait for room."),
}


@dataclass(frozen=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @property
    def text(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str) -> Address:
    """Return what ``127.0.0.1:9449``, ``[::1]:9449`` or ``:9449`` means, or ``ValueError``."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address with a port, such as 127.0.0.1:9449")
    return Address(host.strip("[]") or "0.0.0.0", int(port))


class Servers(Collector):
    """Asks all servers of this user, each time it is scraped."""

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all that answer."""
        sample = take(live.servers())
        asked = (*sample.answers, *sample.silent)
        up = (((str(pid),), pid in sample.answers) for pid in asked)
        yield _family("up", "Whether the process answered.", ("pid",), up)
        processes: Labelled = [
            ((str(pid), ",".join(map(short, stats["tasks"]))), stats)
            for pid, stats in sample.answers.items()
        ]
        yield from _of_processes(processes)
        yield from _of_peers(
            [
                ((labels[0], short(peer["local"]), short(peer["task"])), peer)
                for labels, stats in processes
                for peer in stats["peers"]
            ]
        )


Labels = tuple[str, ...]
Labelled = list[tuple[Labels, dict[str, Any]]]


def _of_processes(processes: Labelled) -> Iterable[Metric]:
    for name, (where, meaning) in _WHOLE.items():
        values = ((labels, _at(stats, where)) for labels, stats in processes)
        yield _family(name, meaning, _OF_PROCESS, values)
    for name, (where, label, meaning) in _NAMED.items():
        values = (
            ((*labels, key), count)
            for labels, stats in processes
            for key, count in _at(stats, where).items()
        )
        yield _family(name, meaning, (*_OF_PROCESS, label), values)
    for way in _WAYS:
        for unit in ("elements", "bytes"):
            meaning = f"Of tf.data service, {unit} {way}."
            values = ((labels, stats["data_service"][way][unit]) for labels, stats in processes)
            yield _family(f"data_service_{way}_{unit}_total", meaning, _OF_PROCESS, values)


def _of_peers(peers: Labelled) -> Iterable[Metric]:
    for way in _WAYS:
        for unit in ("tensors", "bytes"):
            meaning = f"{unit.capitalize()} {way}, by peer and path."
            values = (
                ((*labels, path), counts[unit])
                for labels, peer in peers
                for path, counts in peer[way].items()
            )
            yield _family(f"{way}_{unit}_total", meaning, (*_OF_PEER, "path"), values)
    for name, (where, meaning) in _PEER.items():
        values = ((labels, _at(peer, where)) for labels, peer in peers)
        yield _family(name, meaning, _OF_PEER, values)
    linked = (((*labels, peer["path"]), peer["linked"]) for labels, peer in peers)
    meaning = "Whether a fabric reaches the peer."
    yield _family("peer_linked", meaning, (*_OF_PEER, "path"), linked, max)
    lost = ((labels, peer["lost"]) for labels, peer in peers)
    yield _family("peer_lost", "Whether it was linked, and is not now.", _OF_PEER, lost, max)
    since = ((labels, peer["linked_at"]) for labels, peer in peers if peer["linked"])
    meaning = "When the last link to the peer came up."
    yield _family("peer_linked_timestamp_seconds", meaning, _OF_PEER, since, max)


def _family(
    name: str,
    meaning: str,
    names: Labels,
    values: Iterable[tuple[Labels, float]],
    together: Callable[[float, float], float] = operator.add,
) -> Metric:
    """Make one; servers of one name in one process are taken together, for labels come once."""
    merged: dict[Labels, float] = {}
    for labels, value in values:
        merged[labels] = together(merged[labels], value) if labels in merged else value
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(_PREFIX + name.removesuffix("_total"), meaning, labels=names)
    for labels, value in merged.items():
        family.add_metric(labels, value)
    return family


def _at(stats: dict[str, Any], where: str) -> Any:
    found: Any = stats
    for key in where.split("."):
        found = found[key]
    return found


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Servers())
    return registry


def text() -> str:
    """Return the metrics of this moment."""
    return generate_latest(_registry()).decode()


def write(directory: Path) -> None:
    """Write them for node_exporter's textfile collector, which never sees half of a file."""
    write_to_textfile(os.fspath(directory / FILE_NAME), _registry())


def serve(address: Address) -> tuple[Address, Thread]:
    """Answer scrapes at the address that is returned, its port chosen if it was 0, on that thread.

    ``OSError`` if the address cannot be had.
    """
    server, thread = start_http_server(address.port, addr=address.host, registry=_registry())
    return Address(address.host, server.server_port), thread
