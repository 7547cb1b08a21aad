"""Functions of a batch that all ranks run together, each on its slice of the examples.

Every rank calls the function with the same batch. It runs on this rank's slice, and the outputs of
all ranks are gathered: the caller sees those of the whole batch, the same bits on all ranks.
Backwards, each rank takes its slice of the gradients of the outputs, and the gradients of the
variables are summed over the ranks. So what is computed from the outputs, and its gradients, are
those of one process::

    forward = rt.parallel(model)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(loss_of(labels, forward(images)))
    gradients = tape.gradient(loss, model.trainable_variables)

The function must treat each example by itself, and return tensors whose first dimension is that of
the examples. Inputs that have no first dimension in common run whole on each rank. Ranks compare
their inputs in each call, and the gradients of the outputs: what differs is an error of TensorFlow
on all ranks.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops as graphs

from rdma_transport.changes import note
from rdma_transport.collectives.membership import is_elastic
from rdma_transport.error_file import note_part
from rdma_transport.tensorflow.captured import captured
from rdma_transport.tensorflow.groups import Group, world
from rdma_transport.tensorflow.notes import describe, describe_gradients
from rdma_transport.tensorflow.origins import Origins
from rdma_transport.tensorflow.rows import Batch, Cut, gather_rows
from rdma_transport.tensorflow.sameness import alike, checked, sketch
from rdma_transport.tensorflow.sums import sum_gradients, sum_tensors
from rdma_transport.tensorflow.threads import refuse_second_thread

_DIFFERENT_INPUT = (
    "the ranks call {} with different batches. Each rank must see the same data: usually a shuffle "
    "or an augmentation has a random seed of its own (np.random.default_rng(), random.Random() or "
    "tf.random.Generator without a seed), or the data depends on the process. Ranks whose batch is "
    "that of rank 0:"
)
_DIFFERENT_GRADIENT = (
    "the ranks compute different losses from the outputs of {}: their labels or weights of "
    "examples differ, usually since a shuffle or an augmentation has a random seed of its own. "
    "Ranks whose gradient is that of rank 0:"
)
_FOREIGN = (
    "{} cannot run on several ranks: it uses a tensor that was computed outside of the call from "
    "what a tf.GradientTape watches, and whose gradient would be lost: give it as an argument, or "
    "compute it in the call: {}"
)
_HIGHER = (
    "a derivative of a gradient through {}, which runs on several ranks, is a third one, or is "
    "taken outside the tf.function that computes the gradient: compute both in one tf.function, or "
    "in eager code"
)
_SLICES = (
    "{} cannot run on several ranks: it looks up rows of a table, and a gradient of its gradient "
    "is asked for, or its gradient is computed while a tf.GradientTape records. Leave the block of "
    "the tape before you call its gradient(), and take second derivatives through no table"
)
# Functions of tf.data run in threads of its own, and several at once. But not those that autograph
# makes of a loop over a dataset.
_LOOPS = ("Dataset_scan_scan_body", "Dataset_reduce_reduce_body")
_local = threading.local()
_shares = [True]  # whether functions run in parallel, the last entry counts

# A function of tensors: what it returns are rows of examples, and parts of sums over the ranks.
_OnRows = Callable[..., tuple[list[Any], list[Any]]]


class _Variables:
    """Variables by identity, which does not keep them alive."""

    def __init__(self) -> None:
        self._found: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, variable: Any) -> None:
        """Add a variable of TensorFlow."""
        self._found[id(variable)] = variable

    def __contains__(self, variable: Any) -> bool:
        return self._found.get(id(variable)) is variable

    def __len__(self) -> int:
        return len(self._found)


reduced_variables = _Variables()
"""The variables of which parallel calls have given gradients to this process."""
ran_whole: dict[str, str] = {}
"""What was called and did not run in parallel, with the reason."""


def not_now() -> bool:
    """Return whether functions run whole here: in a parallel call, or a function of tf.data."""
    if getattr(_local, "depth", 0) > 0 or not _shares[-1]:
        return True
    graph = None if tf.executing_eagerly() else graphs.get_default_graph()
    while graph is not None:
        name = getattr(graph, "name", "")
        if name.startswith("Dataset_") and not name.startswith(_LOOPS):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def current_cut() -> Cut | None:
    """Return how the batch of the parallel call in this thread is cut."""
    found: Cut | None = getattr(_local, "cut", None)
    return found


@contextmanager
def _computing(cut: Cut) -> Iterator[None]:
    before, _local.cut = current_cut(), cut
    try:
        yield
    finally:
        _local.cut = before


@contextmanager
def not_parallel() -> Iterator[None]:
    """Let functions run whole in this thread."""
    _local.depth = getattr(_local, "depth", 0) + 1
    try:
        yield
    finally:
        _local.depth -= 1


@contextmanager
def sharing(value: bool) -> Iterator[None]:
    """Let functions run in parallel in a block, or whole, in all threads."""
    _shares.append(value)
    try:
        yield
    finally:
        _shares.pop()


def share_in_blocks_only() -> None:
    """Let functions run whole from now on, but for blocks of ``sharing()``."""
    _shares[0] = False


@dataclass
class Known:
    """What is known of a function from its calls in eager code; graphs are looked at each time."""

    called: bool = False
    """Then it is no more searched for tensors that it uses and does not get as arguments."""
    looks_up: bool | None = None
    """Whether gradients had slices of tables; None before the first gradient."""


def parallel(
    function: Callable[..., Any], *, name: str | None = None, known: Known | None = None
) -> Callable[..., Any]:
    """Return `function` as one that all ranks run together; `name` is for messages.

    Functions with the same `known` are the same in what matters there.
    """
    seen = known or Known()
    label: Any = name or getattr(function, "__name__", "a function")

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not_now():
            return function(*args, **kwargs)
        group = world()
        if group.size == 1 and not is_elastic():
            return function(*args, **kwargs)
        refuse_second_thread(label)
        batch = Batch((args, kwargs), group)
        if batch.cut is None:
            shapes = ", ".join(str(each.shape) for each in batch.rows) or "no tensors"
            text = f"{label} runs whole on each rank: its inputs have no first dimension in common"
            ran_whole[label] = f"{text} ({shapes})"
            note(ran_whole[label])
            with not_parallel():
                return function(*args, **kwargs)
        note_part()
        note(f"{label} runs on {group.size} ranks: each computes a slice of the batch")
        results: list[Any] = []
        watch = captured if not seen.called or not tf.executing_eagerly() else _ignored
        seen.called = True

        def on_rows(*rows: Any) -> tuple[list[Any], list[Any]]:
            own_args, own_kwargs = batch.filled(rows)
            with not_parallel(), explained(label), watch(rows) as foreign:
                results.append(function(*own_args, **own_kwargs))
            if foreign:
                raise NotImplementedError(_FOREIGN.format(label, foreign[0]))
            return [each for each in tf.nest.flatten(results[-1]) if tf.is_tensor(each)], []

        outputs = iter(_call(on_rows, batch.rows, batch.cut, group, label, seen))
        return tf.nest.map_structure(
            lambda each: next(outputs) if tf.is_tensor(each) else each, results[0]
        )

    run.autograph_info__ = None  # type: ignore[attr-defined]  # autograph leaves it as it is
    return run


@contextmanager
def _ignored(_: Any) -> Iterator[list[Any]]:
    yield []


@contextmanager
def explained(label: str) -> Iterator[None]:
    """Say of an error in a block that it may be because of the slice that is given there."""
    try:
        yield
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        raise RuntimeError(
            f"{label} failed on this rank's slice of the batch. If it works in one process, it "
            f"depends on other examples, and cannot run on several ranks: {error}"
        ) from error


def _call(
    function: _OnRows, inputs: Sequence[Any], cut: Cut, group: Group, label: str, known: Known
) -> list[Any]:
    """Run a function on this rank's rows of the inputs; return all rows, and whole sums."""
    wanted = [i for i, each in enumerate(inputs) if _needs_gradient(each)]

    @tf.custom_gradient
    def run(*differentiated: Any) -> Any:
        given = list(inputs)
        for place, each in zip(wanted, differentiated, strict=True):
            given[place] = each
        parts = [cut.take(each) for each in given]
        sources = [parts[place] for place in wanted]
        origins = Origins(parts, wanted=known.looks_up is not False)
        with origins.followed(), tf.GradientTape(persistent=True) as tape:
            tape.watch(sources)
            with _computing(cut):
                rows, sums = function(*parts)
            rows = [describe(cut.checked(each, label), what=f"output of {label}") for each in rows]
        results = gather_rows(rows, cut, group, inputs, _DIFFERENT_INPUT.format(label))
        results += sum_tensors(sums, group=group)

        def backward(*upstream: Any, variables: Sequence[Any] = ()) -> Any:
            used = tape.watched_variables()  # in the order of their creation, as on all ranks
            for each in used:
                reduced_variables.add(each)
            places = [i for i, each in enumerate(rows) if _is_smooth(each, upstream[i])]
            of_rows = [tf.convert_to_tensor(upstream[i]) for i in places]
            of_sums = upstream[len(rows) :]
            if record.should_record_backprop([*rows, *sums, *of_rows]):  # and then once more
                if sums:
                    raise NotImplementedError(_HIGHER.format(label))
                gradient = _gradient_of(function, cut, wanted, places, label)
                found = _call(gradient, [*inputs, *of_rows], cut, group, label, Known())
                (table,) = sum_tensors([sketch(of_rows, group)], group=group)
            else:
                with origins.followed():
                    of_all = tape.gradient(
                        [*(rows[i] for i in places), *sums],
                        [*sources, *used],
                        output_gradients=[*(cut.take_rows(each) for each in of_rows), *of_sums],
                    )
                own = [cut.drop(each) for each in _filled(of_all[: len(sources)], sources)]
                found = gather_rows(own, cut, group)
                of_used, digest = of_all[len(sources) :], sketch(of_rows, group)
                describe_gradients(of_used, used)
                known.looks_up = known.looks_up or any(map(_is_slices, of_used))
                *whole, table = sum_gradients(
                    of_used, [digest], group=group, origins=origins.of(of_used)
                )
                found += whole
                if not tf.executing_eagerly():
                    found = [_not_again(each, label) for each in found]
            found = checked(found, alike(table), _DIFFERENT_GRADIENT.format(label))
            of_variables = {id(v): each for v, each in zip(used, found[len(wanted) :], strict=True)}
            return found[: len(wanted)], [of_variables.get(id(each)) for each in variables]

        return results, backward

    return list(run(*(inputs[place] for place in wanted)))


def _gradient_of(
    function: _OnRows, cut: Cut, wanted: Sequence[int], places: Sequence[int], label: str
) -> _OnRows:
    """Return the function of inputs, and of gradients of rows, that computes the gradients.

    They are those of the wanted inputs, which are rows, and those of variables, which are sums.
    """

    def gradient(*given: Any) -> tuple[list[Any], list[Any]]:
        parts = given[: len(given) - len(places)]
        of_rows = given[len(parts) :]
        sources = [parts[place] for place in wanted]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            rows = [cut.checked(each, label) for each in function(*parts)[0]]
        used = tape.watched_variables()
        found = tape.gradient(
            [rows[place] for place in places],
            [*sources, *used],
            output_gradients=[cut.drop(each) for each in of_rows],
        )
        if any(map(_is_slices, found[len(sources) :])):
            raise NotImplementedError(_SLICES.format(label))
        of_all = _filled(found, [*sources, *used])
        return of_all[: len(sources)], of_all[len(sources) :]

    return gradient


def _is_slices(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def _is_smooth(output: Any, upstream: Any) -> bool:
    return upstream is not None and (output.dtype.is_floating or output.dtype.is_complex)


def _filled(gradients: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
    """Return gradients as tensors: zeros where there is none."""
    return [
        tf.zeros_like(source) if each is None else tf.convert_to_tensor(each)
        for each, source in zip(gradients, sources, strict=True)
    ]


def _needs_gradient(tensor: Any) -> bool:
    """Return whether a tape watches a tensor; in a graph without one, whether it may be asked."""
    if not isinstance(tensor, tf.Tensor) or not tensor.dtype.is_floating:
        return False
    if record.could_possibly_record():
        return bool(record.should_record_backprop([tensor]))
    return not tf.executing_eagerly()


def _not_again(gradient: Any, label: str) -> Any:
    """Return a gradient whose own gradient fails where it is computed: it would be a rank's."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = _not_again(gradient.values, label)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)

    @tf.custom_gradient
    def once(tensor: Any) -> Any:
        def refuse(upstream: Any) -> Any:
            check = tf.debugging.Assert(tf.constant(False), [_HIGHER.format(label)])
            with tf.control_dependencies([check]):
                return tf.zeros_like(upstream)

        return tf.identity(tensor), refuse

    return once(gradient)
