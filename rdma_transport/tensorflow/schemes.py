"""How gradients are sent."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from rdma_transport.collectives.membership import is_elastic
from rdma_transport.settings import read
from rdma_transport.tensorflow.factors import reduce_products
from rdma_transport.tensorflow.groups import Group
from rdma_transport.tensorflow.notes import AS_SET, describe, size_of

_HALVES = {"bf16": tf.bfloat16, "fp16": tf.float16}


@dataclass(frozen=True)
class Scheme:
    """One of the values of the setting GRADIENTS."""

    name: str

    def prepare(
        self, gradients: Sequence[Any], op: str, group: Group, *, factors: bool = True
    ) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
        """Return what is to be reduced of gradients, and what makes reduced gradients of that.

        None stays None, and is also there for what `factors` have reduced already, if they may, and
        for a tensor that is there twice.
        """
        first = _first_places(gradients)
        given = [each if first[i] == i else None for i, each in enumerate(gradients)]
        products: dict[int, Any] = {}
        if self.name == "dense":
            for each in given:
                describe(each, why=AS_SET)
        if factors and self.name in ("auto", "factors"):
            products = reduce_products(given, op, group, always=self.name == "factors")
        half = _HALVES.get(self.name)
        halved = {
            place
            for place, each in enumerate(given)
            if half is not None and each is not None and each.dtype == tf.float32
        }
        sent = [
            self._halved(each) if place in halved else None if place in products else each
            for place, each in enumerate(given)
        ]

        def finish(reduced: Sequence[Any]) -> list[Any]:
            found = [
                _cast(each, tf.float32) if place in halved else products.get(place, each)
                for place, each in enumerate(reduced)
            ]
            return [found[place] for place in first]

        return sent, finish

    def _halved(self, gradient: Any) -> Any:
        sent = _cast(gradient, _HALVES[self.name])
        return describe(sent, gradient, scheme=self.name, why=AS_SET, size=size_of(gradient))


@functools.cache
def gradient_scheme() -> Scheme:
    """Return that of the setting GRADIENTS."""
    return chosen(read().value("GRADIENTS").lower())


def chosen(name: str) -> Scheme:
    """Return a scheme. In elastic jobs, one that needs no agreement of the ranks on a graph."""
    if name == "factors" and is_elastic():
        raise ValueError(
            "elastic jobs do not send gradients as factors: ranks build their graphs at different "
            "times, and could not agree on it. Use RDMA_TRANSPORT_GRADIENTS=dense, bf16 or fp16"
        )
    return Scheme("dense" if name == "auto" and is_elastic() else name)


def _first_places(gradients: Sequence[Any]) -> list[int]:
    """Return for each gradient the first place of the same tensor: variables may share it.

    In eager code each has its own: a program may decide that by values, which differ on ranks.
    """
    if tf.executing_eagerly():
        return list(range(len(gradients)))
    places: dict[int, int] = {}
    return [places.setdefault(id(each), place) for place, each in enumerate(gradients)]


def _cast(tensor: Any, dtype: Any) -> Any:
    if isinstance(tensor, tf.IndexedSlices):
        values = tf.cast(tensor.values, dtype)
        return tf.IndexedSlices(values, tensor.indices, tensor.dense_shape)
    return tf.cast(tensor, dtype)
