"""The exception that this package raises."""

from rdma_transport.errors import BadInputError


class AnalysisError(BadInputError):
    """The input is invalid. The message says what is wrong and how to fix it."""
