"""The rows of a batch: the slice of this rank, and the rows of all ranks together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from rdma_transport.tensorflow.groups import Group
from rdma_transport.tensorflow.notes import describe
from rdma_transport.tensorflow.operations import all_gather, grouped_all_gather, place_in
from rdma_transport.tensorflow.sameness import checked, digest, equal_digests


@dataclass(frozen=True)
class Cut:
    """Which rows of a batch are this rank's: the first ranks get one more if it must be.

    A rank that gets none computes on the first row, and drops the result. Numbers are tensors if
    the batch's size is not known while a graph is built.
    """

    total: Any
    first: Any
    taken: Any
    """The number of rows to compute on."""
    kept: Any
    """The number of rows that count."""

    @classmethod
    def of(cls, tensors: Sequence[Any], group: Group) -> "Cut | None":
        """Return how to cut tensors; None if their first dimensions are not the same."""
        if not tensors:
            return None
        known: set[Any] = {_known_rows(each) for each in tensors}
        sizes = len(known)
        known.discard(None)
        if sizes > 1:  # what may be a table's must not be taken for that of a batch
            return None
        rank, size = place_in(group)
        if known and isinstance(size, int):
            total = known.pop()
            base, extra = divmod(total, size)
            kept = base + (rank < extra)
            first = rank * base + min(rank, extra)
            return cls(total, first if kept else 0, kept or min(total, 1), kept)
        total = known.pop() if known else _same_size([_rows(each) for each in tensors])
        base, extra = total // size, total % size
        kept = base + tf.cast(rank < extra, tf.int32)
        first = rank * base + tf.minimum(rank, extra)
        first = tf.where(kept > 0, first, 0)
        return cls(total, first, tf.maximum(kept, tf.minimum(total, 1)), kept)

    def take(self, tensor: Any) -> Any:
        """Return the rows to compute on."""
        last = self.first + self.taken
        if isinstance(tensor, tf.SparseTensor):
            sizes = tf.concat([[self.taken], tensor.dense_shape[1:]], 0)
            starts = tf.concat([[self.first], tf.zeros_like(tensor.dense_shape[1:])], 0)
            return tf.sparse.slice(tensor, starts, sizes)
        return tensor[self.first : last]

    def take_rows(self, tensor: Any) -> Any:
        """Return the rows that count."""
        return tensor[self.first : self.first + self.kept]

    def drop(self, tensor: Any) -> Any:
        """Drop the rows that do not count."""
        return tensor if self.kept is self.taken else tensor[: self.kept]

    def checked(self, output: Any, label: str) -> Any:
        """Return the rows that count of an output; raise ``ValueError`` if it has no such rows."""
        rows = _known_rows(output)
        known = isinstance(self.taken, int)
        if output.shape.rank == 0 or (known and rows is not None and rows != self.taken):
            raise ValueError(
                f"{label} cannot run on several ranks: for a slice of {self.taken} examples, it "
                f"returns a tensor of shape {output.shape}, whose first dimension is not that of "
                "the examples"
            )
        if not known or rows is None:
            message = f"{label} cannot run on several ranks: an output is not one row per example"
            check = tf.debugging.Assert(
                tf.equal(tf.shape(output)[0], self.taken), [message, tf.shape(output), self.taken]
            )
            with tf.control_dependencies([] if check is None else [check]):
                output = tf.identity(output)
        return self.drop(output)


class Batch:
    """The arguments of a function, and the tensors among them that have a row for each example."""

    def __init__(self, arguments: Any, group: Group) -> None:
        self._arguments = arguments
        self._leaves = [_tensor(leaf) for leaf in tf.nest.flatten(arguments)]
        self._places = [i for i, each in enumerate(self._leaves) if _has_rows(each)]
        self.rows = [self._leaves[place] for place in self._places]
        self.cut = Cut.of(self.rows, group)
        """None if first dimensions are not the same."""

    def filled(self, rows: Sequence[Any]) -> Any:
        """Return the arguments with other rows."""
        leaves = list(self._leaves)
        for place, each in zip(self._places, rows, strict=True):
            leaves[place] = each
        return tf.nest.pack_sequence_as(self._arguments, leaves)


def _tensor(leaf: Any) -> Any:
    return tf.convert_to_tensor(leaf) if isinstance(leaf, (np.ndarray, tf.Variable)) else leaf


def _has_rows(leaf: Any) -> bool:
    return tf.is_tensor(leaf) and leaf.shape.rank != 0


def _known_rows(tensor: Any) -> Any:
    return tensor.shape.as_list()[0] if tensor.shape.rank else None


def _rows(tensor: Any) -> Any:
    if isinstance(tensor, tf.RaggedTensor):
        return tf.cast(tensor.nrows(), tf.int32)
    if isinstance(tensor, tf.SparseTensor):
        return tf.cast(tensor.dense_shape[0], tf.int32)
    return tf.shape(tensor)[0]


def _same_size(sizes: list[Any]) -> Any:
    """Return a number of rows that is not known before the graph runs."""
    if len(sizes) == 1:
        return sizes[0]
    message = (
        "the tensors that a function of a batch gets have different first dimensions, so they "
        "cannot be divided between the ranks:"
    )
    check = tf.debugging.Assert(tf.reduce_all(tf.equal(sizes, sizes[0])), [message, sizes])
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(sizes[0])


def gather_rows(
    outputs: Sequence[Any], cut: Cut, group: Group, inputs: Sequence[Any] = (), message: str = ""
) -> list[Any]:
    """Return the rows of all ranks; fail with `message` if the ranks' inputs differ.

    A digest of the inputs travels with the outputs.
    """
    results: list[Any] = [None] * len(outputs)
    own = digest(inputs) if inputs else None
    digests = None
    for kind in dict.fromkeys(output.dtype for output in outputs):
        places = [i for i, output in enumerate(outputs) if output.dtype == kind]
        carries = own is not None and digests is None and not kind.is_bool
        carried = [describe(_bits_as(own, kind), own)] if carries else []
        found = grouped_all_gather([outputs[i] for i in places] + carried, group=group)
        if carries:
            digests = _bits_of(found.pop())
        for place, each in zip(places, found, strict=True):
            results[place] = each
    if own is not None:
        digests = all_gather(own, group=group) if digests is None else digests
        results = checked(results, equal_digests(digests), message)
    for output, result in zip(outputs, results, strict=True):
        rows = cut.total if isinstance(cut.total, int) else None
        result.set_shape([rows, *output.shape[1:]])
    return results


def _bits_as(row: Any, kind: Any) -> Any:
    return tf.bitcast(row if kind.size == 1 else tf.reshape(row, [1, -1, kind.size]), kind)


def _bits_of(rows: Any) -> Any:
    found = tf.bitcast(rows, tf.uint8)
    return found if found.shape.rank == 2 else tf.reshape(found, [tf.shape(rows)[0], -1])
