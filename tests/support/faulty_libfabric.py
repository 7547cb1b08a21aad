"""A libfabric that behaves like other providers, for tasks that are processes: how to use it."""

import pytest

from tests.support.fake_verbs import NATIVE_TESTS

ABSENT = {"RDMA_TRANSPORT_LIBFABRIC": "/nowhere/libfabric.so.1"}


def library() -> str:
    """The library; skips the test if it is not built."""
    found = sorted(NATIVE_TESTS.rglob("libfaulty_libfabric.so"))
    if not found:
        pytest.skip("the double of libfabric is not built: make test-native")
    return str(found[0])


def environment(fabric: str = "libfabric", faulty: str = "", **settings: str) -> dict[str, str]:
    """A task's environment with it; `faulty` as in tests/native/faulty_libfabric/control.h.

    The task has no verbs, and is on the loopback interface unless `settings` name another.
    """
    made = {
        "RDMA_TRANSPORT_FABRIC": fabric,
        "RDMA_TRANSPORT_LIBFABRIC": library(),
        "RDMA_TRANSPORT_LIBFABRIC_INTERFACE": "lo",
        "RDMA_TRANSPORT_LIBIBVERBS": "/nowhere/libibverbs.so.1",
        "FAULTY_LIBFABRIC": faulty,
    }
    return made | {f"RDMA_TRANSPORT_{name}": value for name, value in settings.items()}
