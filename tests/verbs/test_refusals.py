"""What a real kernel refuses: `verbs` says why and what to do, `auto` goes on without it."""

from typing import Any

import pytest

from tools.guest.guest import Guest

pytestmark = pytest.mark.timeout(180, func_only=True)
OPEN = "from rdma_transport.fabric import Device; print(Device.open({!r}).summary)"


def refused(guest: Guest, *words: str, **options: Any) -> None:
    """See that all words are in what both fabrics say, and that one of them fails."""
    for fabric in ("verbs", "auto"):
        result = guest.python(OPEN.format(fabric), **options)
        said = result.stdout + result.stderr
        for word in words:
            assert word in said, said
        assert (result.returncode == 0) == (fabric == "auto"), said


def test_it_opens_with_a_route_for_people(guest: Guest) -> None:
    summary = guest.python(OPEN.format("verbs")).check().stdout
    assert "rxe0:1" in summary
    assert "RoCE v2" in summary
    assert guest.address in summary


@pytest.mark.parametrize("uid", [0, 1000])
def test_too_little_locked_memory(guest: Guest, uid: int) -> None:
    cures = ("ulimit -l unlimited", "LimitMEMLOCK", "--ulimit memlock=-1", "Kubernetes", "Slurm")
    refused(guest, "RLIMIT_MEMLOCK", *cures, memlock=65536, uid=uid)


def test_no_permission(guest: Guest) -> None:
    device = "/dev/infiniband/uverbs0"
    guest.run(["chmod", "600", device]).check()
    try:
        refused(guest, "/dev/infiniband", uid=1000)
    finally:
        guest.run(["chmod", "666", device]).check()


def test_port_down(guest: Guest) -> None:
    guest.link(False)
    refused(guest, "rxe0:1", "DOWN")


def test_unknown_device_and_gid(guest: Guest) -> None:
    refused(guest, "mlx5_7", "rxe0", env={"RDMA_TRANSPORT_DEVICES": "mlx5_7"})
    refused(guest, "GID_INDEX", env={"RDMA_TRANSPORT_GID_INDEX": "99"})


def test_no_library(guest: Guest) -> None:
    refused(guest, "libnowhere", "install", env={"RDMA_TRANSPORT_LIBIBVERBS": "libnowhere.so.1"})
