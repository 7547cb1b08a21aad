"""Notes on tensors of a graph: what they are, and how and why they are sent so.

The operation that sends them stores the notes in its node. In eager code nothing is noted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from rdma_transport.exchange import ATTRIBUTE, Exchange

AS_SET = "as set"
COMPARISON = "a comparison of ranks"
_NOTE = "_rdma_transport_note"
_GRADIENTS = ("gradient_tape/", "gradients/")  # scopes of TensorFlow


@dataclass(frozen=True)
class Note:
    """What is known of a tensor. Each part may be missing."""

    what: str = ""
    """The variable whose gradient it is, or several: a and b."""
    scheme: str = ""
    why: str = ""
    size: int | None = None
    """Bytes of the gradient, if the tensor that is sent is another one."""
    expected: bool | None = None
    """As in ``Exchange``."""


def describe(tensor: Any, like: Any = None, **changes: Any) -> Any:
    """Add to the note of a tensor, or to that of another one; return the tensor."""
    target = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    if isinstance(target, tf.Tensor) and not tf.executing_eagerly():
        setattr(target, _NOTE, replace(note_of(tensor if like is None else like), **changes))
    return tensor


def describe_gradients(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Note of gradients whose they are."""
    names: dict[int, list[str]] = {}
    for gradient, variable in zip(gradients, variables, strict=False):
        name = getattr(variable, "path", None) or getattr(variable, "name", "")
        names.setdefault(id(gradient), []).append(str(name).partition(":")[0])
        describe(gradient, what=" and ".join(names[id(gradient)]))


def note_of(tensor: Any) -> Note:
    """Return what was noted of a tensor so far."""
    target = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    found: Note = getattr(target, _NOTE, Note())
    return found


def size_of(tensor: Any) -> int | None:
    """Return the bytes of a tensor, or of the values of slices; None if its shape is not known."""
    target = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    count = target.shape.num_elements()
    return None if count is None else int(count * target.dtype.size)


def name_of(tensor: Any) -> str:
    """Return the name of the node that computes a tensor, without the scope of gradients."""
    name: str = tensor.op.name
    for scope in _GRADIENTS:
        name = name.removeprefix(scope)
    return name


def store(operation: Any, notes: Sequence[Note], count: int, ranks: int, scheme: str) -> None:
    """Store notes in an operation whose first `count` inputs are what a rank gives to it.

    There is one for each of these, or one for all.
    """
    given = list(operation.inputs)[:count]
    sizes = [
        size_of(tensor) if each.size is None else each.size
        for each, tensor in zip(notes, given, strict=False)
    ]
    exchange = Exchange(
        ranks,
        tuple(each.what or name_of(tensor) for each, tensor in zip(notes, given, strict=False)),
        _sum(sizes),
        _sum([size_of(tensor) for tensor in given]),
        " and ".join(dict.fromkeys(each.scheme or scheme for each in notes)),
        "in one operation" if len(notes) > 1 else notes[0].why,
        notes[0].expected,
    )
    value = attr_value_pb2.AttrValue(s=exchange.to_text().encode())
    operation._set_attr(ATTRIBUTE, value)


def _sum(sizes: Sequence[int | None]) -> int | None:
    known = [each for each in sizes if each is not None]
    return sum(known) if len(known) == len(sizes) else None
