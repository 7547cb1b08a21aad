"""Gradients that are sent as the two factors of which they are the product.

The gradient of the matrix in ``x @ w`` is ``xᵀ g``. With few examples, the rows of x and g are
fewer bytes than the product: the ranks gather them, and each computes the sum of all products as
one. The idea is that of sufficient factors: P. Xie et al., "Lighter-Communication Distributed
Machine Learning via Sufficient Factor Broadcasting", UAI 2016, and when to use them that of
Poseidon: H. Zhang et al., USENIX ATC 2017.

Only in graphs, where the product can be recognized, and is not computed if nothing else needs it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from rdma_transport.tensorflow import speeds
from rdma_transport.tensorflow.groups import Group
from rdma_transport.tensorflow.notes import AS_SET, Note, describe, name_of, note_of
from rdma_transport.tensorflow.operations import all_reduce, call, run_independently

_LARGE = 1 << 20  # bytes; a smaller gradient takes no time that is worth a choice
_FEWEST_ROWS = 8  # a limit below that is next to never met
_GAIN = 0.8  # what factors may take of the time of a sum: the speeds are estimates
_TYPES = (tf.float32, tf.float64)


@dataclass(frozen=True)
class Factors:
    """A gradient that is ``leftᵀ right``: of shapes [rows, m] and [rows, n], in another shape."""

    name: str
    note: Note
    left: Any
    right: Any
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Bytes of one row of both."""
        return int(self.left.shape[1] + self.right.shape[1]) * int(self.left.dtype.size)

    @property
    def size(self) -> int:
        """Bytes of the product."""
        return math.prod(self.shape) * int(self.left.dtype.size)

    def most_rows(self, found: speeds.Speeds, ranks: int) -> int:
        """Return how many rows a rank may have so that gathering them is the faster way."""
        row = self.width * (ranks - 1) * found.gather
        row += (ranks - 1) * math.prod(self.shape) * found.multiply
        return int(_GAIN * self.size * found.reduce / row)

    def product(self) -> Any:
        """Return the gradient of this rank."""
        return tf.reshape(tf.matmul(self.left, self.right, transpose_a=True), self.shape)

    @property
    def rows(self) -> int | None:
        """The number of rows, if the graph knows it."""
        found: int | None = self.left.shape.as_list()[0]
        return found

    @property
    def text(self) -> str:
        """What it is, for notes."""
        return "a product" if self.rows is None else f"a product of {self.rows} rows"

    def reduce(self, op: str, group: Group, **noted: Any) -> Any:
        """Return the reduced gradient, out of the factors of all ranks."""
        known = replace(self.note, scheme="factors", size=self.size, **noted)
        both = [self.left, self.right]
        left, right = call(
            "all_gather", f"{self.name}/factors", group, [known], tensors=both
        ).gathered
        if op == "average":
            right = right / tf.constant(group.size, right.dtype)
        return tf.reshape(tf.matmul(left, right, transpose_a=True), self.shape)


def factors_of(gradient: Any) -> Factors | None:
    """Return the factors of a gradient in a graph; None if it is not such a product."""
    if not isinstance(gradient, tf.Tensor) or not gradient.shape.is_fully_defined():
        return None
    if gradient.dtype not in _TYPES:
        return None
    name = gradient.op.name
    node = gradient.op
    while node.type in ("Identity", "Reshape"):
        node = node.inputs[0].op
    if node.type != "MatMul" or not node.get_attr("transpose_a") or node.get_attr("transpose_b"):
        return None
    left, right = node.inputs
    if left.shape[1] is None or right.shape[1] is None:
        return None
    known = note_of(gradient)
    known = replace(known, what=known.what or name_of(gradient))
    return Factors(name, known, left, right, tuple(gradient.shape.as_list()))


@tf.autograph.experimental.do_not_convert
def reduce_products(
    gradients: Sequence[Any], op: str, group: Group, *, always: bool = False
) -> dict[int, Any]:
    """Reduce the gradients for which factors are the faster way, or `always` all products.

    Return them by their places. The ranks decide alike: by speeds that they measured together, and
    in each step by the rows of all of them.
    """
    if tf.executing_eagerly():
        return {}
    found: dict[int, Factors] = {}
    for place, gradient in enumerate(gradients):
        product = factors_of(gradient)
        if product is None:
            describe(gradient, why="no product of two matrices")
        elif product.size < _LARGE and not always:
            describe(gradient, why="a product of less than 1 MiB")
        else:
            found[place] = product
    if always:
        if found:
            speeds.require_alike()
        return {
            i: each.reduce(op, group, why=f"{AS_SET}: {each.text}") for i, each in found.items()
        }
    measured = speeds.measured() if found else None
    limits = {
        i: -1 if measured is None else each.most_rows(measured, group.size)
        for i, each in found.items()
    }
    for i in [i for i in found if limits[i] < _FEWEST_ROWS]:
        why = f"a sum is faster above {limits[i]} rows"
        if limits[i] < 0:
            why = "the ranks' bits would differ"
        describe(gradients[i], why=f"{found.pop(i).text}: {why}")
    return _reduce_in_time(found, limits, op, group)


def _reduce_in_time(
    products: dict[int, Factors], limits: dict[int, int], op: str, group: Group
) -> dict[int, Any]:
    """Reduce by factors unless a rank has too many rows, or has joined and so gathers nothing."""
    if not products:
        return {}
    # A rank that has joined adds zeros: then there are fewer ones than ranks.
    rows = {i: tf.shape(each.left)[0] for i, each in products.items()}
    own = [tf.constant(1)] + [tf.cast(rows[i] > limits[i], tf.int32) for i in products]
    first = next(iter(products.values()))
    compared = describe(
        tf.stack(own), what="rows of products", why="tells whether factors are faster"
    )
    here, *over = tf.unstack(all_reduce(compared, name=f"{first.name}/rows", group=group))
    results = {}
    for too_many, (place, each) in zip(over, products.items(), strict=True):
        few = each.rows is None or each.rows <= limits[place]
        why = f"{each.text}: factors are faster up to {limits[place]} rows"

        def by_factors(each: Factors = each, why: str = why, few: bool = few) -> Any:
            return each.reduce(op, group, why=why, expected=few)

        def as_sum(each: Factors = each, why: str = why, few: bool = few) -> Any:
            product = describe(each.product(), what=each.note.what, why=why, expected=not few)
            return all_reduce(product, op, name=f"{each.name}/sum", group=group)

        is_faster = tf.equal(here, group.size) & tf.equal(too_many, 0)
        results[place] = tf.cond(is_faster, by_factors, as_sum)
        condition = results[place].op.inputs[0].op
        run_independently(condition)
    return results
