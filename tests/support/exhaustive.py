"""Which tests are left to `make test-exhaustive`.

They repeat what tests of `make test` show with another fabric than shared memory, between hosts, in
benchmarks and examples, and for each command of the documentation. Or they are about what fewer
jobs meet, such as accelerators, tf.data service, a secret, clusters of both protocols, damaged
files, and hosts that `doctor` finds fault with. Or they take long: hundreds of steps, very large
tensors and graphs. Of tests in many variants, `make test` has a few.
"""

import pytest

VARIANTS = {"verbs", "libfabric", "mixed", "checksums", "little memory", "no static edges"}
# How the names of some begin that stay in `make test`.
EXAMPLES = (
    "tests/data_parallel/test_scripts.py::test_a_script[2",
    "tests/data_parallel/test_scripts.py::test_a_script_that_shares_nothing_fails",
    "tests/horovod/test_elastic.py::test_a_killed_rank_is_replaced[killed",
    "tests/hosts/test_elastic.py::test_a_host_is_lost_and_comes_back",
    "tests/horovod/test_failures.py::test_a_rank_that_fails_ends_the_job[exception",
    "tests/plugin/test_aborts.py::test_it_ends_as_over_grpc[crossing-one]",
    "tests/plugin/test_aborts.py::test_it_ends_as_over_grpc[functions]",
    "tests/plugin/test_ownership.py::test_no_use_of_a_received_tensor_writes_into_it[a middle]",
    "tests/plugin/test_zero_copy.py::test_a_front_end_learns_the_same_without_a_copy[functions]",
    "tests/plugin/test_zero_copy.py::test_functions_are_static_from_their_first_step[functions-5]",
    "tests/rdma_transport/test_embedding_operations.py::test_ranks_train_as_one_process_does[shm-adagrad-tape]",
    "tests/rdma_transport/test_embeddings.py::test_an_owner_that_is_killed_is_named[looks_up_forever-shm]",
    "tests/rdma_transport/test_run_horovod.py::test_a_rank_without_init_fails_the_job",
    "tests/rdma_transport/test_run_horovod.py::test_mpi4py_beside_another_communicator",
)
# How the names of those begin that do not.
NAMES = (
    "tests/accelerator/",
    "tests/bench/",
    "tests/data_parallel/",
    "tests/examples/",
    "tests/graph_analyzer/test_bad_input.py",
    "tests/graph_analyzer/test_cli.py::test_a_function_of_a_script",
    "tests/graph_analyzer/test_input.py::test_real_objects_and_files_of_tensorflow",
    "tests/graph_analyzer/test_memory.py::test_a_graph_of_ten_thousand_nodes_is_analyzed",
    "tests/graph_analyzer/test_memory.py::test_with_too_many_edges_the_peak_is_the_sum",
    "tests/graph_analyzer/test_models.py",
    "tests/graph_analyzer/test_reductions.py::test_a_keras_model",
    "tests/graph_analyzer/test_strategies.py::test_each_worker_shows_what_a_strategy_reduces[grpc",
    "tests/horovod/test_elastic.py",
    "tests/horovod/test_failures.py",
    "tests/horovod/test_programs.py::test_a_data_service_of_another_job",
    "tests/horovod/test_programs.py::test_options_with_keras_3",
    "tests/horovod/test_programs.py::test_tf_keras[legacy]",
    "tests/hosts/",
    "tests/plugin/test_aborts.py",
    "tests/plugin/test_data_service.py",
    "tests/plugin/test_direct_reductions.py",
    "tests/plugin/test_equality.py::test_tensors_beyond_two_and_four_gibibytes",
    "tests/plugin/test_faults.py::test_a_task_that_has_not_started_is_named",
    "tests/plugin/test_import.py",
    "tests/plugin/test_mixed_clusters.py",
    "tests/plugin/test_ownership.py::test_no_use_of_a_received_tensor_writes_into_it",
    "tests/plugin/test_profiler.py",
    "tests/plugin/test_secret.py",
    "tests/plugin/test_step_calls.py::test_the_calls_that_a_failed_step_cancels_are_not_its_error",
    "tests/plugin/test_verbs.py",
    "tests/plugin/test_zero_copy.py::test_a_front_end_learns_the_same_without_a_copy",
    "tests/plugin/test_zero_copy.py::test_functions_are_static_from_their_first_step",
    "tests/rdma_transport/test_collective_errors.py",
    "tests/rdma_transport/test_command_streams.py",
    "tests/rdma_transport/test_doctor.py",
    "tests/rdma_transport/test_doctor_cluster.py::test_all_other_tasks_are_asked",
    "tests/rdma_transport/test_doctor_cluster.py::test_tasks_that_have_not_started_yet",
    "tests/rdma_transport/test_doctor_libfabric.py",
    "tests/rdma_transport/test_doctor_peer.py",
    "tests/rdma_transport/test_embedding_operations.py",
    "tests/rdma_transport/test_embeddings.py::test_an_owner_that_is_killed_is_named",
    "tests/rdma_transport/test_embeddings.py::test_another_number_of_owners_restores_it[sgd]",
    "tests/rdma_transport/test_qualify.py::test_a_host_that_leaves_is_named",
    "tests/rdma_transport/test_qualify.py::test_four_hosts",
    "tests/rdma_transport/test_qualify.py::test_the_table_names_each_claim",
    "tests/rdma_transport/test_qualify.py::test_training_has_the_bits_of_grpc",
    "tests/rdma_transport/test_qualify.py::test_two_cards",
    "tests/rdma_transport/test_qualify.py::test_verbs_and_libfabric_pass",
    "tests/rdma_transport/test_run.py",
    "tests/rdma_transport/test_run_horovod.py",
    "tests/rdma_transport/test_run_launchers.py",
    "tests/rdma_transport/test_tensorflow_ops.py::test_a_stopped_rank_is_named",
    "tests/rdma_transport/test_tensorflow_ops.py::test_each_kind_with_each_type[3",
    "tests/rdma_transport/test_tensorflow_ops.py::test_gradients[3",
    "tests/rdma_transport/test_tensorflow_ops.py::test_no_rank_hangs_at_exit_after_an_exception_on_another[0",
    "tests/rdma_transport/test_tensorflow_ops.py::test_thousands_of_steps",
    "tests/rdma_transport/test_timeline.py",
    "tests/rdma_transport/test_viewer.py",
    "tests/support/",
    "tests/test_commands.py::test_it_works",
    "tests/test_commands.py::test_mirrored_workers_without_the_launcher",
    "tests/test_commands.py::test_two_hosts_work",
    "tests/upstream/",
)


def is_exhaustive(item: pytest.Item) -> bool:
    if item.nodeid.startswith(EXAMPLES):
        return False
    if item.nodeid.startswith(NAMES):
        return True
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(value, str) and value in VARIANTS for value in values)
