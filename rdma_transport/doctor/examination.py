"""All checks in their order, and what the exit code says of them."""

from collections.abc import Iterator, Sequence
from typing import Any

from rdma_transport.doctor.case import Case
from rdma_transport.doctor.result import FAIL, PASS, STATUSES, Result

VERSION = 1
HEALTHY, CHECK_FAILED, NO_FABRIC, NO_PEER = 0, 1, 3, 4
NO_ANSWER = ("peer_address", "peer_server")


def examine(case: Case) -> Iterator[tuple[str, Result]]:
    """Run every check; yield its family and what it found, as soon as it is known."""
    from rdma_transport.doctor import host, room, secret, software, verbs

    for family, checks in (
        ("software", software.CHECKS),
        ("InfiniBand and RoCE", verbs.CHECKS),
        ("memory and limits", room.CHECKS),
        ("this host", host.CHECKS),
        ("security", secret.CHECKS),
    ):
        for check in checks:
            yield family, check(case)
    if case.peer:
        from rdma_transport.doctor import peer

        for result in peer.examine(case):
            yield f"peer {case.peer}", result


def exit_code(results: Sequence[Result], required: str) -> int:
    """0: nothing failed; 3: the required fabric is not there; 4: no such peer; 1: else."""
    status = {result.name: result.status for result in results}
    if required and (
        status.get(f"{required}_transfer", PASS) != PASS or status.get("peer_path") == FAIL
    ):
        return NO_FABRIC
    if any(status.get(name) == FAIL for name in NO_ANSWER):
        return NO_PEER
    return CHECK_FAILED if FAIL in status.values() else HEALTHY


def counts(results: Sequence[Result]) -> dict[str, int]:
    """How many results have each status."""
    return {status: sum(result.status == status for result in results) for status in STATUSES}


def as_dict(results: Sequence[Result], code: int) -> dict[str, Any]:
    """The JSON that ``schema.json`` describes."""
    return {
        "version": VERSION,
        "exit_code": code,
        "counts": counts(results),
        "checks": [result.as_dict() for result in results],
    }
