"""The exception that this package raises, under the name that its users know."""

from rdma_transport.errors import BadInputError

AnalysisError = BadInputError
