"""Bad settings end in an error, or a warning, that names the setting and the nearest right one."""

import pytest

from bench.support.cluster import Task, free_port

pytestmark = pytest.mark.timeout(90)


def start(environment: dict[str, str], **changes: object) -> tuple[dict, str]:
    """What a task says when it starts like that, and its log."""
    spec = {"a": [f"127.0.0.1:{free_port()}"]}
    arguments = {"job": "a", "index": 0, "protocol": "rdma", "cluster": spec} | changes
    task = Task(**arguments, environment=environment)  # type: ignore[arg-type]
    try:
        return task.wait_ready(), task.logged()
    finally:
        task.end()


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("RDMA_TRANSPORT_ARENA_SIZE", "lots", "a size such as"),
        ("RDMA_TRANSPORT_PEER_TIMEOUT", "8", "with its unit"),
        ("RDMA_TRANSPORT_FABRIC", "infiniband", "auto|shm|verbs|libfabric|grpc"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_setting(name: str, value: str, hint: str) -> None:
    answer, _ = start({name: value})
    assert answer["error"] == "InvalidArgumentError"
    assert name in answer["message"]
    assert hint in answer["message"]


def test_a_misspelt_setting_is_one_warning_with_the_nearest_name() -> None:
    answer, log = start({"RDMA_TRANSPORT_FABRICK": "shm"})
    assert answer == {"ready": True}
    assert log.count("did you mean RDMA_TRANSPORT_FABRIC?") == 1


def test_a_port_in_use_is_an_error() -> None:
    spec = {"a": [f"127.0.0.1:{free_port()}"]}
    holder = Task("a", 0, "rdma", spec)
    try:
        assert holder.wait_ready() == {"ready": True}
        answer, _ = start({}, cluster=spec)
        assert "error" in answer
        port = spec["a"][0].rpartition(":")[2]
        assert f"at port {port}: another process listens there" in answer["message"]
    finally:
        holder.end()


@pytest.mark.parametrize("protocol", ["rmda", "RDMA", "rdma://", "grpc+gdr", "verbs", "rdam "])
def test_a_misspelt_protocol_is_one_line_with_the_right_name(protocol: str) -> None:
    answer, _ = start({}, protocol=protocol)
    assert answer["error"] == "InvalidArgumentError"
    assert f"no protocol '{protocol}'; did you mean 'rdma'?" in answer["message"]
    assert "\n" not in answer["message"]


def test_what_is_no_name_of_this_transport_is_left_to_tensorflow() -> None:
    answer, _ = start({}, protocol="quic")
    assert answer["error"] == "NotFoundError"
    assert "No server factory registered" in answer["message"]


def test_a_cluster_without_this_task_is_an_error() -> None:
    answer, _ = start({}, index=7)
    assert answer["message"] == 'Task 7 was not defined in job "a"'
