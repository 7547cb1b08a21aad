"""Estimates memory, queue pairs, bytes and time per step for N workers and M parameter servers.

Symbols: P is the model size in bytes, B_m its bytes on server m. There are N workers, M servers,
s slots per edge, and q queue pairs that a task has for each task it is connected with: one on each
port that they share. On libfabric, one endpoint serves all peers, and q is 0.

In each step every worker reads all parameters and returns a gradient of the same size (dense
gradients, no compression), so

* a link carries B_m each way;
* the port of server m sends N B_m and receives N B_m, a worker's port sends P and receives P.

Registered memory follows the plan: the sender's tensor is in its arena, and every edge has s slots
at the receiver. So

* server m: B_m (parameters, read in place by all workers) + s N B_m (a gradient per worker);
* worker: s P (received parameters) + P (gradients that it allocates).

Every server is connected with every worker. A reliable connection has one queue pair at each end,
so a server has q N, a worker q M and the cluster 2 q N M queue pairs.

Time: each direction of each port moves ``bandwidth`` bytes per second (full duplex), and the
network in between is not the limit. Reading alone takes max_m(N B_m, P) / bandwidth, and so does
returning the gradients.

* ``seconds_overlapped``: both at once, in opposite directions of the same ports. No step can be
  shorter; asynchronous workers come close.
* ``seconds_synchronous``: first all reads, then all gradients: twice that.

Compute, headers, latency and tensors other than parameters and gradients are not included.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from graph_analyzer.errors import AnalysisError
from graph_analyzer.plan import Plan
from rdma_transport import _native

MAX_TASKS = 2**20
SLOTS_PER_EDGE = _native.SLOTS_PER_EDGE
QUEUE_PAIRS_PER_PEER = 1  # one channel for each pair of tasks, with one queue pair


@dataclass(frozen=True)
class Capacity:
    """The estimate for one cluster, in bytes and seconds per step. Formulas: see the module.

    ``shards`` are the parameter bytes B_m of each server, in ``tensors`` tensors; ``placement`` is
    how they were spread.
    """

    workers: int
    servers: int
    bandwidth: float
    queue_pairs_per_peer: int
    slots: int
    batch: int | None
    placement: str
    shards: tuple[int, ...]
    tensors: tuple[int, ...]

    @property
    def model_bytes(self) -> int:
        """P."""
        return sum(self.shards)

    @property
    def largest_shard(self) -> int:
        """max_m B_m: what one link of the busiest server carries each way per step."""
        return max(self.shards)

    @property
    def imbalance(self) -> float:
        """The largest shard over the mean: 1 is even, M means all bytes on one server."""
        return self.largest_shard * self.servers / self.model_bytes

    @property
    def server_registered(self) -> int:
        """B_m + s N B_m of the server with the largest shard."""
        return self.largest_shard * (1 + self.slots * self.workers)

    @property
    def worker_registered(self) -> int:
        """(s + 1) P."""
        return self.model_bytes * (1 + self.slots)

    @property
    def total_registered(self) -> int:
        """The sum over all tasks."""
        servers = self.model_bytes * (1 + self.slots * self.workers)
        return servers + self.workers * self.worker_registered

    @property
    def server_queue_pairs(self) -> int:
        """N times q."""
        return self.queue_pairs_per_peer * self.workers

    @property
    def worker_queue_pairs(self) -> int:
        """M times q."""
        return self.queue_pairs_per_peer * self.servers

    @property
    def total_queue_pairs(self) -> int:
        """2 q N M, both ends counted."""
        return 2 * self.queue_pairs_per_peer * self.workers * self.servers

    @property
    def server_port_bytes(self) -> int:
        """N max_m B_m: bytes per step that leave the busiest server's port, and that enter it."""
        return self.workers * self.largest_shard

    @property
    def worker_port_bytes(self) -> int:
        """P: bytes per step that enter a worker's port, and that leave it."""
        return self.model_bytes

    @property
    def total_bytes(self) -> int:
        """2 N P: bytes per step over the network."""
        return 2 * self.workers * self.model_bytes

    @property
    def busiest_port(self) -> str:
        """``server`` or ``worker``: the port that takes longest."""
        return "server" if self.server_port_bytes >= self.worker_port_bytes else "worker"

    @property
    def seconds_overlapped(self) -> float:
        """max(N max_m B_m, P) / bandwidth."""
        return max(self.server_port_bytes, self.worker_port_bytes) / self.bandwidth

    @property
    def seconds_synchronous(self) -> float:
        """Twice ``seconds_overlapped``: parameters first, then gradients."""
        return 2 * self.seconds_overlapped

    @property
    def samples_per_second(self) -> float | None:
        """N batch / ``seconds_overlapped``: the network's upper bound; ``None`` without batch."""
        if self.batch is None:
            return None
        return self.workers * self.batch / self.seconds_overlapped

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, as in ``schema.json``."""
        return {name: _json(getattr(self, name)) for name in _FIELDS}


_FIELDS = (
    *("workers", "servers", "bandwidth", "queue_pairs_per_peer", "slots", "batch", "placement"),
    *("shards", "tensors", "model_bytes", "largest_shard", "imbalance"),
    *("server_registered", "worker_registered", "total_registered"),
    *("server_queue_pairs", "worker_queue_pairs", "total_queue_pairs"),
    *("server_port_bytes", "worker_port_bytes", "total_bytes", "busiest_port"),
    *("seconds_overlapped", "seconds_synchronous", "samples_per_second"),
)


def _json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def capacity(
    model: int | Plan,
    workers: int,
    servers: int,
    *,
    bandwidth: float,
    batch: int | None = None,
    queue_pairs_per_peer: int = QUEUE_PAIRS_PER_PEER,
    slots: int = SLOTS_PER_EDGE,
) -> Capacity:
    """Estimate the needs of ``workers`` and ``servers``, each on its own host, for ``model``.

    ``model`` is a number of bytes, which is spread evenly, or a plan, whose exchanged variables
    stay whole and are placed greedily. ``bandwidth`` is bytes per second of one port in one
    direction; ``batch`` is samples per worker and step. Formulas: see the module.

    Raises ``AnalysisError`` for numbers out of range, and for a plan in which no task reads a
    variable of another task.
    """
    for name, number, least in (
        ("workers", workers, 1),
        ("servers", servers, 1),
        ("queue pairs per peer", queue_pairs_per_peer, 0),
        ("slots", slots, 1),
        ("batch", 1 if batch is None else batch, 1),
    ):
        if not least <= number <= MAX_TASKS:
            raise AnalysisError(f"{name}: {number} is not between {least} and {MAX_TASKS}")
    if not 0 < bandwidth < float("inf"):
        raise AnalysisError(f"the bandwidth {bandwidth} is not greater than 0 bytes per second")
    placement, placed = _place(model, servers)
    shards, tensors = tuple(map(sum, placed)), tuple(map(len, placed))
    if sum(shards) == 0:
        raise AnalysisError("the model has 0 bytes, so there are no parameters to exchange")
    return Capacity(
        *(workers, servers, bandwidth, queue_pairs_per_peer, slots, batch),
        *(placement, shards, tensors),
    )


def _place(model: int | Plan, servers: int) -> tuple[str, list[list[int]]]:
    """How they were spread, and the sizes of each server's tensors."""
    if isinstance(model, Plan):
        exchanged = model.exchanged()
        if not exchanged:
            raise AnalysisError(
                "no task of this plan reads a variable of another task, so there is no parameter "
                "server. Give the size of the model with --size instead"
            )
        return "greedy", spread_greedily((variable.bytes for variable in exchanged), servers)
    if model < 0:
        raise AnalysisError(f"a model cannot have {model} bytes")
    return "even", [[shard] for shard in spread_evenly(model, servers)]


def spread_evenly(model_bytes: int, servers: int) -> list[int]:
    """Split ``model_bytes`` into ``servers`` shards that differ by at most one byte."""
    each, more = divmod(model_bytes, servers)
    return [each + (server < more) for server in range(servers)]


def spread_greedily(sizes: Iterable[int], servers: int) -> list[list[int]]:
    """Place each whole variable, largest first, on the least loaded server; return their sizes.

    Graham's longest-processing-time rule: at most 4/3 - 1/(3M) times the best possible largest
    load ("Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17, 1969).
    """
    placed: list[list[int]] = [[] for _ in range(servers)]
    loads = [(0, server) for server in range(servers)]
    for size in sorted(sizes, reverse=True):
        load, server = loads[0]
        placed[server].append(size)
        heapq.heapreplace(loads, (load + size, server))
    return placed
