"""How reductions can send fewer bytes."""

from typing import Any

import tensorflow as tf

from rdma_transport.tensorflow.notes import AS_SET, describe, size_of
from rdma_transport.tensorflow.schemes import Scheme, chosen, gradient_scheme


class Compressor:
    """Interface of compressors: ``compress()`` returns what is sent and what undoes it."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and a context for ``decompress()``."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor that was compressed."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    dtype = tf.float16
    scheme = "fp16"

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return a tensor of 16 bits, unless it is one of integers."""
        if not tensor.dtype.is_floating:
            return tensor, None
        sent = tf.cast(tensor, cls.dtype)
        describe(sent, tensor, scheme=cls.scheme, why=AS_SET, size=size_of(tensor))
        return sent, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its former type."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class BF16Compressor(FP16Compressor):
    """Sends floating-point tensors as bfloat16, which has the range of float32."""

    dtype = tf.bfloat16
    scheme = "bf16"


class DenseCompressor(NoneCompressor):
    """Sends gradients as they are, whatever the setting GRADIENTS says."""


class FactorsCompressor(NoneCompressor):
    """Sends gradients that are a product of matrices as its factors, if they are in a graph."""


class Compression:
    """The compressors. Gradients with ``none`` are sent as RDMA_TRANSPORT_GRADIENTS says.

    ``bf16``, ``dense`` and ``factors`` are not Horovod's.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    dense = DenseCompressor
    factors = FactorsCompressor


def scheme_of(compression: Any) -> Scheme:
    """Return how an optimizer with this compression sends gradients, before it compresses them."""
    if compression is Compression.none:
        return gradient_scheme()
    return chosen("factors" if compression is Compression.factors else "dense")
