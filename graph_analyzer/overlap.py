"""Measures how much of what ranks exchange in a step is hidden behind its computation.

Each rank takes the step as it is; then by itself, with the same computation, but exchanging with no
other rank; then it exchanges as many bytes in the same operations, all there from the start. What
the step takes longer than by itself is not hidden.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from graph_analyzer.apart import isolate
from graph_analyzer.backward import Found
from graph_analyzer.errors import AnalysisError
from graph_analyzer.sources import only_concrete
from rdma_transport.exchange import hidden_share

_BLOCK = 5  # steps of one kind before as many of the next


@dataclass(frozen=True)
class Overlap:
    """Medians, in seconds, of the slowest rank in each step."""

    steps: int
    step: float
    apart: float
    """Of a step in which each rank exchanges with itself only."""
    exchange: float
    """Of what a step exchanges, without the step."""

    @property
    def hidden(self) -> float:
        """The share of the exchange by which the step is not longer, from 0 to 1."""
        return hidden_share(self.step, self.apart, self.exchange)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, as in ``schema.json``."""
        return asdict(self) | {"hidden": self.hidden}


def measure(graph: Any, operations: Sequence[Found], steps: int) -> Overlap:
    """Measure `steps` steps of a function, whose `operations` exchange something.

    All ranks must call it, after they have traced it alike.

    Inputs are zeros. Variables get their values back afterwards; what else the step changes, such
    as the place in a dataset, stays changed.

    Raises ``AnalysisError`` for what cannot be measured.
    """
    import tensorflow as tf

    import rdma_transport.tensorflow as rt
    from rdma_transport.collectives.ranks import find_ranks

    if not hasattr(graph, "get_concrete_function") and not hasattr(graph, "captured_inputs"):
        raise AnalysisError("--steps needs a function that takes a step, such as train.py:step")
    function = only_concrete(graph) if hasattr(graph, "get_concrete_function") else graph
    if find_ranks().size == 1:
        raise AnalysisError("--steps measures ranks, which rdma-transport run starts")
    world = rt.world()
    own = [rt.new_group([rank]) for rank in range(world.size)][world.rank]
    try:
        with _restored(function):
            kinds = (
                _replayed(function, lambda _: None),
                _replayed(function, lambda graph_def: isolate(graph_def, own.number, world.size)),
                _exchange(operations, world.size),
            )
            return Overlap(steps, *_medians(kinds, steps))
    except (tf.errors.OpError, ValueError, AssertionError) as error:
        if isinstance(error, AnalysisError):
            raise
        why = str(error).strip().partition("\n")[0]
        raise AnalysisError(f"--steps: the step failed: {why}") from error


@contextmanager
def _restored(function: Any) -> Iterator[None]:
    """Give variables their values back after a block."""
    variables = function.graph.variables
    kept = [each.read_value() for each in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)


def _medians(kinds: Sequence[Callable[[], Any]], steps: int) -> list[float]:
    """Return those of the times of each kind, which take turns."""
    import rdma_transport.tensorflow as rt

    for kind in kinds:
        kind()
    times: list[list[float]] = [[] for _ in kinds]
    for first in range(0, steps, _BLOCK):
        for kind, of_kind in zip(kinds, times, strict=True):
            of_kind += [_seconds(kind) for _ in range(min(steps - first, _BLOCK))]
    slowest = rt.all_reduce(times, "max", name="rdma_transport/measured_times").numpy()
    return [statistics.median(map(float, each)) for each in slowest]


def _seconds(kind: Callable[[], Any]) -> float:
    """Return how long a call takes, which all ranks start together."""
    import rdma_transport.tensorflow as rt

    rt.barrier(name="rdma_transport/measured")
    start = time.perf_counter()
    kind()
    return time.perf_counter() - start


def _replayed(function: Any, change: Callable[[Any], None]) -> Callable[[], Any]:
    """Return a call of a concrete function whose graph has been changed."""
    import tensorflow as tf

    graph = function.graph
    graph_def = graph.as_graph_def()
    change(graph_def)
    given = {placeholder.name: tensor for tensor, placeholder in graph.captures}
    for placeholder in graph.inputs:
        if placeholder.name not in given:
            if not placeholder.shape.is_fully_defined():
                raise AnalysisError(f"the shape of the input {placeholder.name} is not known")
            given[placeholder.name] = tf.zeros(placeholder.shape, placeholder.dtype)
    wanted = [each.name for each in (*graph.control_outputs, *(o.op for o in graph.outputs))]

    def run() -> Any:
        inside = tf.compat.v1.get_default_graph()
        known = {name: inside.capture(tensor) for name, tensor in given.items()}
        ends = tf.graph_util.import_graph_def(graph_def, known, wanted, name="")
        with tf.control_dependencies(ends):
            return tf.constant(0)

    made = tf.compat.v1.wrap_function(run, [])
    return lambda: made().numpy()


def _exchange(found: Sequence[Found], ranks: int) -> Callable[[], Any]:
    """Return a call that exchanges what a step does, all of it at once."""
    import tensorflow as tf

    import rdma_transport.tensorflow as rt

    given = []
    for each in found:
        if each.within == "conditional":
            continue
        if each.exchange.given is None or each.within or each.exchange.ranks != ranks:
            raise AnalysisError(
                f"--steps cannot measure {each.operation} of {', '.join(each.exchange.what)}: its "
                "bytes are not known before the step, it runs in a loop, or only some ranks take "
                "part"
            )
        dtype = tf.as_dtype(each.dtype)
        tensor = tf.zeros([each.exchange.given // dtype.size], dtype)
        given.append((getattr(rt, each.operation), tensor))

    if not given:
        raise AnalysisError("--steps needs operations that run in each step, and there are none")

    @tf.function
    def run() -> Any:
        ends = [operation(tensor) for operation, tensor in given]
        with tf.control_dependencies(tf.nest.flatten(ends)):
            return tf.constant(0)

    return lambda: run().numpy()
