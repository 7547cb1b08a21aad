"""The launcher's side of elastic jobs, whose ranks may die and be replaced."""

MEETING = "_RDMA_TRANSPORT_ELASTIC_MEETING"
"""The environment variable that names the launcher's socket for a rank."""
MEMBER = "_RDMA_TRANSPORT_ELASTIC_MEMBER"
"""The variable with the number of a rank's process there."""
