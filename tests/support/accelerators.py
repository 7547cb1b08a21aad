"""Clusters whose tasks have pretend accelerators; tests/native/pretend_accelerator/control.h says
what these are."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench.support.cluster import Cluster, Task
from tests.support import fake_verbs

NATIVE_TESTS = Path(__file__).parent.parent.parent / "build" / "debug" / "tests" / "native"
PROGRAM = Path(__file__).parent.parent / "accelerator" / "task.py"
LIBRARY = "PRETEND_ACCELERATOR_LIBRARY"
SETTINGS = "PRETEND_ACCELERATOR"
CUDA = "RDMA_TRANSPORT_LIBCUDA"
PRETEND_CUDA = "libpretend_cuda.so"
FALLBACK = os.environ.get("TEST_ACCELERATOR_FALLBACK", "forbid")
"""Of the tasks over rdma. With "allow", tests do not ask how tensors traveled."""
COUNTERS = (
    "dtoh_copies", "dtoh_bytes", "htod_copies", "htod_bytes", "dtod_copies", "dtod_bytes",
    "kernels", "allocated_bytes", "pending",
)  # fmt: skip


class _Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in COUNTERS]


class Library:
    """The library in this process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._functions: ctypes.CDLL | None = None

    def load(self) -> None:
        """Give this process its accelerators; must come before TensorFlow looks for devices."""
        from tensorflow.python.framework import load_library

        load_library.load_pluggable_device_library(self.path)
        self._functions = ctypes.CDLL(self.path)
        driver = os.environ.get(CUDA)
        if driver is not None and Path(driver).name == PRETEND_CUDA:
            ctypes.CDLL(driver).PretendCudaServe(self._functions.PretendAcceleratorFind)

    def set(self, pairs: str) -> bool:
        assert self._functions is not None
        return bool(self._functions.PretendAcceleratorSet(pairs.encode()))

    def counters(self) -> dict[str, int]:
        assert self._functions is not None
        counted = _Counters()
        self._functions.PretendAcceleratorCount(ctypes.byref(counted))
        return {name: getattr(counted, name) for name in COUNTERS}


def library() -> str:
    """The library; skips the test if it is not built."""
    found = sorted(NATIVE_TESTS.rglob("libpretend_accelerator.so"))
    if not found:
        pytest.skip("the pretend accelerator is not built: make test-native")
    return str(found[0])


def cuda_library() -> str:
    """The pretend CUDA driver; skips the test if it is not built."""
    found = sorted(NATIVE_TESTS.rglob(PRETEND_CUDA))
    if not found:
        pytest.skip("the pretend CUDA driver is not built: make test-native")
    return str(found[0])


def exporting(fabric: str = "verbs", fake: str = "", **settings: str) -> dict[str, str]:
    """Settings of tasks whose accelerators export their memory, with the fake libibverbs."""
    return fake_verbs.environment(fabric, fake, **settings) | {CUDA: cuda_library()}


def environment(devices: int = 2, pretend: str = "") -> dict[str, str]:
    """A process's environment with so many accelerators; `pretend` as in control.h."""
    return {LIBRARY: library(), SETTINGS: f"devices={devices} {pretend}"}


class AcceleratorTask(Task):
    """A task whose accelerators can be disturbed and watched."""

    def set(self, pairs: str) -> None:
        self.tell(f"set {pairs}")
        assert self.read(), pairs

    def count(self) -> dict[str, int]:
        self.tell("count")
        counters: dict[str, int] = self.read()
        return counters


class AcceleratorCluster(Cluster):
    """Tasks with two accelerators each; over rdma, with FALLBACK as above."""

    def __init__(
        self,
        jobs: dict[str, int],
        protocol: str,
        settings: dict[str, str] | None = None,
        *,
        devices: int = 2,
        pretend: str = "",
        without: tuple[tuple[str, int], ...] = (),
    ) -> None:
        fallback = {"RDMA_TRANSPORT_FALLBACK": FALLBACK}
        # As control.h says, what TensorFlow receives over gRPC is wrong otherwise.
        ordered = int(protocol == "grpc" or FALLBACK == "allow")
        given = environment(devices, f"in_order={ordered} {pretend}") | fallback
        given |= settings or {}
        super().__init__(jobs, protocol, given, without)

    def _start(self, job: str, index: int) -> AcceleratorTask:
        return AcceleratorTask(
            job, index, self.protocol, self.spec, self.environment, program=PROGRAM
        )

    def accelerated(self) -> dict[str, AcceleratorTask]:
        tasks = self.by_name().items()
        return {name: task for name, task in tasks if isinstance(task, AcceleratorTask)}

    def set(self, pairs: str) -> None:
        """Change the settings of all tasks that there are."""
        for task in self.accelerated().values():
            task.set(pairs)


Clusters = dict[str, AcceleratorCluster]


@contextmanager
def over_both(
    jobs: dict[str, int],
    settings: dict[str, str] | None = None,
    *,
    devices: int = 2,
    pretend: str = "",
) -> Iterator[Clusters]:
    """The same cluster over gRPC and over rdma; `settings` are of the latter's tasks."""
    with ExitStack() as stack:
        made = {}
        for protocol, given in (("grpc", None), ("rdma", settings)):
            made[protocol] = AcceleratorCluster(
                jobs, protocol, given, devices=devices, pretend=pretend
            )
            stack.callback(made[protocol].end)
        yield made


def assert_by_fabric(cluster: AcceleratorCluster) -> None:
    """None of the tensors so far fell back to gRPC, and nothing else went wrong."""
    if FALLBACK == "allow":
        return
    for task in cluster.tasks.values():
        stats = task.stats()
        assert stats["fallback_reasons"] == {}
        assert stats["errors"] == {}
        assert stats["sent"]["grpc"] == stats["received"]["grpc"] == {"tensors": 0, "bytes": 0}
