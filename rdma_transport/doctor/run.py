"""Runs all checks in order, and computes the exit code."""

from collections.abc import Iterator, Sequence
from typing import Any

from rdma_transport.command_line import FAILED, NO_PEER, NOT_AVAILABLE
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import FAIL, PASS, STATUSES, Result

VERSION = 1
NO_ANSWER = ("peer_address", "peer_server")


def examine(context: Context) -> Iterator[tuple[str, Result]]:
    """Run every check; yield its family and its result as soon as it is known."""
    from rdma_transport.doctor import gpu_direct, host, libfabric, limits, secret, software, verbs

    for family, checks in (
        ("software", software.CHECKS),
        ("InfiniBand and RoCE", verbs.CHECKS),
        ("libfabric", libfabric.checks(context)),
        ("GPUs", gpu_direct.CHECKS),
        ("memory and limits", limits.CHECKS),
        ("this host", host.CHECKS),
        ("security", secret.CHECKS),
    ):
        for check in checks:
            yield family, check(context)
    if context.tf_config:
        from rdma_transport.doctor import cluster

        for result in cluster.examine(context):
            yield "cluster of TF_CONFIG", result
    if context.peer:
        from rdma_transport.doctor import peer

        for result in peer.examine(context):
            yield f"peer {context.peer}", result


def exit_code(results: Sequence[Result], required: str) -> int:
    """Return 0 if nothing failed, 3 without the required fabric, 4 without the peer, else 1."""
    status = {result.name: result.status for result in results}
    if required and (
        status.get(f"{required}_transfer", PASS) != PASS or status.get("peer_transport") == FAIL
    ):
        return NOT_AVAILABLE
    if any(status.get(name) == FAIL for name in NO_ANSWER):
        return NO_PEER
    return FAILED if FAIL in status.values() else 0


def counts(results: Sequence[Result]) -> dict[str, int]:
    """Return the number of results with each status."""
    return {status: sum(result.status == status for result in results) for status in STATUSES}


def as_dict(results: Sequence[Result], code: int) -> dict[str, Any]:
    """Return the document that ``schemas/doctor.json`` describes."""
    return {
        "version": VERSION,
        "exit_code": code,
        "counts": counts(results),
        "checks": [result.as_dict() for result in results],
    }
