"""Cards that read and write the memory of accelerators themselves: the same bits, and no copies."""

from typing import Any

import pytest
import tensorflow as tf

from bench.support.cluster import eventually
from tests.accelerator.test_edges import (  # noqa: F401
    A0,
    A1,
    A_CPU,
    B0,
    B1,
    B_CPU,
    computed,
    tasks,
    test_a_loop_over_accelerators,
    test_a_variable_that_is_assigned_after_the_send,
    test_a_variable_that_is_assigned_what_was_received,
    test_branches_not_taken_are_dead_on_accelerators,
    test_every_shape,
    test_every_type,
    test_from_a_device_to_a_kernel_that_reads_in_the_hosts_memory,
    test_host_memory_of_accelerator_operations,
    test_one_tensor_for_several_devices,
    test_shapes_that_change_in_each_step,
    test_sources_are_freed_and_overwritten_right_after_the_send,
    test_steps_of_several_sessions_at_once,
    test_values_that_change_in_each_step,
    values,
)
from tests.support import fake_verbs
from tests.support.accelerators import CUDA, Clusters, cuda_library
from tests.support.graphs import Graph, assert_equal_over_both, v1

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("accelerators")]


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    made = fake_verbs.environment(GPU_DIRECT="on")
    return made | {CUDA: cuda_library(), "RDMA_TRANSPORT_STATIC": "on"}


LARGE = [20_000, 300_000, 2**20 + 3]


def test_no_side_copies(clusters: Clusters) -> None:
    def build() -> Any:
        with tf.device(A0):
            sent = [
                tf.negative(
                    v1.get_variable(f"v{n}", initializer=values([n], n), use_resource=True).read_value()
                )
                for n in LARGE
            ]
        return tf.group(*[computed(B0, tensor) for tensor in sent])

    rdma = clusters["rdma"]
    a, b = tasks(rdma)
    with Graph(rdma, build) as graph:
        for _ in range(2):  # the first step may begin before the peers are linked
            graph.run()
        before = [(task.count(), task.stats()) for task in (a, b)]
        for _ in range(3):
            graph.run()
        after = [(task.count(), task.stats()) for task in (a, b)]
    for old, new in zip(before, after, strict=True):
        for name in ("dtoh_copies", "htod_copies", "dtod_copies"):
            assert new[0][name] == old[0][name]
        assert new[1]["device_copied_bytes"] == old[1]["device_copied_bytes"]
        assert new[1]["device_direct_bytes"] - old[1]["device_direct_bytes"] == 3 * 4 * sum(LARGE)
        assert new[1]["direct"]["registrations"] == old[1]["direct"]["registrations"]
