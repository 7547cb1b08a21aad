"""`rdma-transport doctor` with a TF_CONFIG: the protocol, the own address, and all other tasks."""

import json
import socket
import subprocess
from typing import Any

import pytest

from bench.support.cluster import Task, free_port
from rdma_transport.doctor import cluster
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import FAIL, PASS, WARN
from tests.support.command import checks, run

pytestmark = pytest.mark.timeout(120)


def config(index: int = 0, layer: str | None = "rdma", **jobs: list[str]) -> dict[str, Any]:
    """The TF_CONFIG of a worker."""
    found: dict[str, Any] = {"cluster": jobs, "task": {"type": "worker", "index": index}}
    return found | ({} if layer is None else {"rpc_layer": layer})


def examined(text: str) -> dict[str, Any]:
    return {one.name: one for one in cluster.examine(Context(tf_config=text, wait=5.0))}


def here() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "it is not JSON"),
        ("[]", 'it has no "cluster"'),
        ('{"cluster": {"worker": "host:1"}}', 'the addresses of "worker" are not a list'),
        ('{"cluster": {"worker": ["host"]}}', '"host" of "worker" is not HOST:PORT'),
        ('{"cluster": {"worker": ["a:1", "a:1"]}}', "a:1 is the address of two tasks"),
        ('{"cluster": {"worker": ["a:1"]}}', 'it has no "task"'),
        (json.dumps(config(2, worker=["a:1", "b:1"])), "the cluster has worker (2); indices begin"),
        (json.dumps(config(ps=["a:1"])), "its task is /job:worker/task:0, but the cluster has ps"),
    ],
)
def test_what_is_no_tf_config(text: str, sentence: str) -> None:
    found = examined(text)
    assert [one.status for one in found.values()] == [FAIL]
    assert sentence in found["cluster"].found


@pytest.mark.parametrize(
    ("layer", "status", "why"),
    [
        ("rdma", PASS, ""),
        (None, WARN, "this task uses gRPC"),
        ("grpc", WARN, "this task uses gRPC"),
        ("rmda", FAIL, "did you mean rdma?"),
        ("quic", FAIL, "TensorFlow has no such protocol"),
    ],
)
def test_the_protocol_and_its_fix(layer: str | None, status: str, why: str) -> None:
    text = json.dumps(config(0, layer, worker=[here()]))
    found = examined(text)["cluster"]
    assert found.status == status
    assert why in found.why
    if status != PASS:  # the fix, by a shell, makes it pass
        ran = subprocess.run(
            ["bash", "-c", f'{found.fix["shell"]}\nprintf %s "$TF_CONFIG"'],
            env={"PATH": "/usr/bin:/bin", "TF_CONFIG": text},
            capture_output=True,
            text=True,
            check=True,
        )
        assert examined(ran.stdout)["cluster"].status == PASS


def test_the_own_address() -> None:
    assert examined(json.dumps(config(worker=[here()])))["cluster_address"].status == PASS
    away = examined(json.dumps(config(worker=["192.0.2.77:2222"])))["cluster_address"]
    assert (away.status, "no address of this host" in away.found) == (WARN, True)
    unknown = examined(json.dumps(config(worker=["no.such.host.invalid:2222"])))
    assert unknown["cluster_address"].status == FAIL
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = examined(json.dumps(config(worker=[f"127.0.0.1:{port}"])))["cluster_address"]
    assert (taken.status, taken.found) == (FAIL, f"port {port}: Address already in use")


def test_all_other_tasks_are_asked() -> None:
    jobs = {"worker": [here(), here()], "ps": [here(), here()], "chief": ["no.such.host.invalid:1"]}
    started = [
        Task("worker", 0, "rdma", jobs),
        Task("ps", 0, "rdma", jobs),
        Task("ps", 1, "grpc", jobs),
    ]
    try:
        for task in started:
            assert task.wait_ready() == {"ready": True}
        ran = run(
            *("doctor", "--quick", "--json"), settings={"TF_CONFIG": json.dumps(config(**jobs))}
        )
        assert ran.returncode == 1
        found = checks(ran)
        assert "serves at" in found["cluster_address"]["found"]  # this task itself
        tasks = found["cluster_tasks"]
        first, *rest = tasks["found"].splitlines()
        assert first == "1 of 4 other tasks answer and use the plugin"
        said = {line.partition(" ")[0].rstrip(":"): line for line in rest}
        assert "does not answer: Connection refused" in said["/job:worker/task:1"]
        assert "does not use the plugin" in said["/job:ps/task:1"]
        assert "cannot resolve" in said["/job:chief/task:0"]
        assert tasks["status"] == FAIL
        # Where another task is expected.
        swapped = jobs | {"ps": jobs["ps"][::-1], "chief": []}
        tasks = examined(json.dumps(config(**swapped)))["cluster_tasks"]
        assert "/job:ps/task:1 serves there" in tasks.found
        assert started[1].stats()["peers"] == []  # a doctor is no peer, and leaves nothing behind
    finally:
        for task in started:
            task.end()


def test_tasks_that_have_not_started_yet_are_a_warning(tmp_path: Any) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config(worker=[here(), here()])))
    ran = run("doctor", "--quick", "--json", "--tf-config", file)
    assert ran.returncode == 0
    assert checks(ran)["cluster_tasks"]["status"] == WARN
