"""Finds the scheme that moves the fewest bytes, per variable.

The schemes are a parameter server, a ring all-reduce and sufficient factors.

The idea is Poseidon's: H. Zhang et al., "Poseidon: An Efficient Communication Architecture for
Distributed Deep Learning on GPU Clusters", USENIX ATC 2017, its comparison of schemes for one fully
connected layer (M x N weights, K samples per worker, P1 workers, P2 servers). The formulas are
derived again at each function here; Poseidon counts values (floats), this module bytes.

All schemes are counted alike, per step and variable. ``busiest`` is the largest number of bytes
that leave and enter the port of one node. ``total`` counts each byte in the whole cluster once. In
all three schemes a node sends as much as it receives. So at full duplex the time is half of
``busiest`` over the bandwidth, and the order of the schemes is the same.

Parameters on servers are split into equal shards, as in Poseidon's key-value store. A variable that
stays whole on one server loads that server as if P2 were 1. Gradients are dense. The multiplication
of the factors, P1 K M N multiply-adds on each worker, is not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graph_analyzer.capacity import MAX_TASKS
from graph_analyzer.errors import AnalysisError
from graph_analyzer.plan import Plan
from graph_analyzer.records import Variable

PARAMETER_SERVER = "parameter server"
RING = "ring all-reduce"
SUFFICIENT_FACTORS = "sufficient factors"
SCHEMES = (PARAMETER_SERVER, RING, SUFFICIENT_FACTORS)
_GRADIENT_TYPES = ("float", "double", "half", "bfloat16", "complex")


@dataclass(frozen=True)
class Cost:
    """Bytes per step: in and out of the busiest node, and over all links."""

    scheme: str
    busiest: int
    total: int


def parameter_server(size: int, workers: int, servers: int, colocated: bool = False) -> Cost:
    """Return the cost of ``size`` bytes of weights on ``servers`` equal shards.

    With hosts of their own: a worker receives the weights and sends the gradient, 2S; a server
    sends its shard to, and receives its gradient from, P1 workers: 2 P1 S / P2. Over all links:
    2 P1 S.

    ``colocated``: worker i and server i share a node, as in Poseidon; what they exchange stays in
    the node. As a worker the node exchanges the shards of P2 - 1 other servers, 2S (P2-1)/P2; as a
    server its shard with P1 - 1 other workers, 2S (P1-1)/P2; together Poseidon's
    2S (P1+P2-2)/P2. Where P1 and P2 differ some nodes have one role: 2S, or 2 P1 S / P2.
    """
    worker, server = 2 * size, _ceil(2 * workers * size, servers)
    if not colocated:
        return Cost(PARAMETER_SERVER, max(worker, server), 2 * workers * size)
    both = min(workers, servers)
    loads = [_ceil(2 * size * (workers + servers - 2), servers)]
    loads += [worker] * (workers > servers) + [server] * (servers > workers)
    # each of the P2 shards goes to P1 workers, or to P1 - 1 where its node has a worker itself
    total = _ceil(2 * size * (both * (workers - 1) + (servers - both) * workers), servers)
    return Cost(PARAMETER_SERVER, max(loads), total)


def ring_all_reduce(size: int, workers: int) -> Cost:
    """Return the cost of summing ``size`` bytes of gradient over ``workers`` in a ring.

    P1 - 1 steps of reduce-scatter and P1 - 1 of all-gather; in each a worker sends S / P1 bytes and
    receives as much: it sends 2 S (P1-1)/P1, twice that in and out, and 2 S (P1-1) cross all
    links. No all-reduce sends less: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms
    for clusters of workstations", J. Parallel Distrib. Comput. 69(2), 2009, pp. 117-124.
    """
    return Cost(RING, _ceil(4 * size * (workers - 1), workers), 2 * size * (workers - 1))


def sufficient_factors(rows: int, m: int, n: int, item_bytes: int, workers: int) -> Cost:
    """Return the cost of broadcasting the two factors of an M x N gradient.

    The gradient of ``x @ w`` is xᵀ g with x of K x M and g of K x N, so K (M+N) values determine
    it. A worker sends them to P1 - 1 others and receives theirs: Poseidon's 2 K (P1-1)(M+N) values;
    P1 (P1-1) K (M+N) cross all links. Idea of the factors: P. Xie et al., "Lighter-Communication
    Distributed Machine Learning via Sufficient Factor Broadcasting", UAI 2016.
    """
    factors = rows * (m + n) * item_bytes
    return Cost(SUFFICIENT_FACTORS, 2 * (workers - 1) * factors, workers * (workers - 1) * factors)


@dataclass(frozen=True)
class VariableAdvice:
    """One variable and the cost of each applicable scheme; ``rows`` is the K used."""

    variable: Variable
    rows: int | None
    costs: tuple[Cost, ...]

    def cost(self, scheme: str) -> Cost | None:
        """Return the cost of one of ``SCHEMES``; ``None`` if it does not apply."""
        return next((cost for cost in self.costs if cost.scheme == scheme), None)

    @property
    def cheapest(self) -> Cost:
        """The scheme with the lowest load on its busiest node; on ties the first of ``SCHEMES``."""
        return min(self.costs, key=lambda cost: cost.busiest)

    @property
    def cheapest_in_total(self) -> Cost:
        """The scheme with the fewest bytes over all links; on ties the first of ``SCHEMES``."""
        return min(self.costs, key=lambda cost: cost.total)


@dataclass(frozen=True)
class Advice:
    """The advice for all exchanged variables of a plan, largest first."""

    workers: int
    servers: int
    batch: int | None
    colocated: bool
    variables: tuple[VariableAdvice, ...]

    def total(self, choose: Callable[[VariableAdvice], Cost]) -> Cost:
        """Sum the chosen costs over the variables. ``busiest`` is an upper bound for one node.

        It is exact if the same kind of node is the busiest for every variable.
        """
        chosen = [choose(one) for one in self.variables]
        schemes = {cost.scheme for cost in chosen}
        name = schemes.pop() if len(schemes) == 1 else "mixed"
        return Cost(name, sum(cost.busiest for cost in chosen), sum(cost.total for cost in chosen))

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, as in ``schema.json``."""
        return {
            "workers": self.workers,
            "servers": self.servers,
            "batch": self.batch,
            "colocated": self.colocated,
            "variables": [_values(one) for one in self.variables],
        }


def advise(
    plan: Plan,
    *,
    batch: int | None = None,
    workers: int | None = None,
    servers: int | None = None,
    colocated: bool = False,
) -> Advice:
    """Compare the three schemes for each variable of ``plan`` that other tasks read.

    ``batch`` is K, the rows that each worker multiplies with a weight; ``None`` means the plan's
    own K of each variable. ``workers`` and ``servers`` default to those of the plan: servers are
    the tasks that hold such variables, workers the tasks that receive tensors from them. Sufficient
    factors apply only to MatMul weights with known K. Integers (a step counter) allow only a
    parameter server.

    Raises ``AnalysisError`` if the plan has no such variables or a number is out of range.
    """
    exchanged = plan.exchanged()
    homes = {variable.task for variable in exchanged}
    readers = {edge.destination for edge in plan.tensors if edge.source in homes} - homes
    workers = len(readers) if workers is None else workers
    servers = len(homes) if servers is None else servers
    if not exchanged:
        raise AnalysisError(
            "no task of this plan reads a variable of another task, so there is nothing to "
            "compare. Give a training graph that uses parameter servers"
        )
    for name, number in (("workers", workers), ("servers", servers), ("batch", batch or 1)):
        if not 1 <= number <= MAX_TASKS:
            raise AnalysisError(f"{name}: {number} is not between 1 and {MAX_TASKS}")
    if batch is not None and batch < 1:
        raise AnalysisError(f"batch: {batch} is less than 1")
    ordered = sorted(exchanged, key=lambda variable: (-variable.bytes, variable.name))
    found = (_advise_one(variable, batch, workers, servers, colocated) for variable in ordered)
    return Advice(workers, servers, batch, colocated, tuple(found))


def _advise_one(
    variable: Variable, batch: int | None, workers: int, servers: int, colocated: bool
) -> VariableAdvice:
    costs = [parameter_server(variable.bytes, workers, servers, colocated)]
    rows = None
    if variable.dtype.startswith(_GRADIENT_TYPES):
        costs.append(ring_all_reduce(variable.bytes, workers))
        rows = _rows(variable, batch)
    m, n = _matrix(variable)
    if rows is not None and m * n > 0:
        item_bytes = variable.bytes // (m * n)
        costs.append(sufficient_factors(rows, m, n, item_bytes, workers))
    return VariableAdvice(variable, rows, tuple(costs))


def _rows(variable: Variable, batch: int | None) -> int | None:
    if variable.matmul_rows is None:
        return None
    if batch is not None:
        return batch
    return variable.matmul_rows if variable.matmul_rows > 0 else None


def _matrix(variable: Variable) -> tuple[int, int]:
    shape = variable.shape or ()
    if len(shape) != 2 or shape[0] is None or shape[1] is None:
        return 0, 0
    return shape[0], shape[1]


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _values(one: VariableAdvice) -> dict[str, Any]:
    return {
        "name": one.variable.name,
        "bytes": one.variable.bytes,
        "rows": one.rows,
        "costs": [
            {"scheme": cost.scheme, "busiest": cost.busiest, "total": cost.total}
            for cost in one.costs
        ],
        "cheapest": one.cheapest.scheme,
        "cheapest_in_total": one.cheapest_in_total.scheme,
    }
