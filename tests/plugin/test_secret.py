"""A job with a secret: who has it uses the fabric, who has another or none does not."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from bench.support.cluster import Cluster, NotStartedError, Task
from bench.support.collective_cluster import CollectiveCluster
from bench.support.data_service import DataService
from tests.support import fake_verbs, forked
from tests.support.command import checks, run
from tests.support.deadlines import eventually, patient
from tests.support.graphs import A, B, Graph

pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("secret")]
ONE, TWO = "1" * 64, "2" * 64
JOBS = {"a": 1, "b": 1}
FABRICS = ("shm", "verbs")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return written(tmp_path / "secret", ONE)


def written(path: Path, *secrets: str, mode: int = 0o600) -> Path:
    """A new file in the place of the old one, as Kubernetes and careful people do it."""
    made = path.with_suffix(".new")
    made.write_text("".join(f"{line}\n" for line in secrets))
    made.chmod(mode)
    made.rename(path)
    return path


def environment(path: Path | None, fabric: str = "shm", **settings: str) -> dict[str, str]:
    made = fake_verbs.environment(fabric, **settings) if fabric == "verbs" else {}
    made |= {f"RDMA_TRANSPORT_{name}": value for name, value in settings.items()}
    return made | ({"RDMA_TRANSPORT_SECRET_FILE": str(path)} if path else {})


@contextmanager
def two_tasks(of_a: dict[str, str], of_b: dict[str, str]) -> Iterator[Cluster]:
    with Cluster(JOBS, "rdma", of_a, without=[("b", 0)]) as cluster:
        cluster.tasks["b", 0] = task = Task("b", 0, "rdma", cluster.spec, of_b)
        assert task.wait_ready() == {"ready": True}
        yield cluster


def there_and_back() -> list[tf.Tensor]:
    with tf.device(A):
        data = tf.random.stateless_uniform([30_000], seed=[1, 2])
    with tf.device(B):
        there = tf.negative(data)
    with tf.device(A):
        return [tf.reduce_max(tf.abs(there + data))]


def paths(cluster: Cluster) -> set[str]:
    return {
        peer["transport"] for task in cluster.tasks.values() for peer in task.stats()["peers"]
    } - {"idle"}


def logged(cluster: Cluster) -> str:
    return "".join(task.logged() for task in cluster.tasks.values())


@pytest.mark.parametrize("fabric", FABRICS)
def test_tasks_with_the_same_secret_use_the_fabric(fabric: str, secret: Path) -> None:
    forbid = environment(secret, fabric, FALLBACK="forbid")
    with Cluster(JOBS, "rdma", forbid) as cluster, Graph(cluster, there_and_back) as graph:
        for _ in range(5):
            assert graph.run() == [0.0]
        assert paths(cluster) == {fabric}
        for task in cluster.tasks.values():
            assert task.stats()["sent"]["grpc"]["tensors"] == 0
        assert ONE not in logged(cluster)
        assert ONE not in json.dumps([task.ask() for task in cluster.tasks.values()])


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize(
    ("other", "said_by_a", "said_by_b"),
    [
        (TWO, "its secret differs", "secret differs"),
        (None, "it has no secret: set RDMA_TRANSPORT_SECRET_FILE there", "this task has none"),
    ],
)
def test_tasks_that_differ_use_grpc_and_say_why(
    fabric: str, other: str | None, said_by_a: str, said_by_b: str, secret: Path, tmp_path: Path
) -> None:
    of_b = written(tmp_path / "other", other) if other else None
    with two_tasks(environment(secret, fabric), environment(of_b, fabric)) as cluster:
        with Graph(cluster, there_and_back) as graph:
            for _ in range(5):
                assert graph.run() == [0.0]
        assert paths(cluster) == {"grpc"}
        stats = cluster["a", 0].stats()
        assert any(said_by_a in reason for reason in stats["fallback_reasons"]), stats
        assert stats["sent"]["grpc"]["tensors"] > 0
        line = f"peer /job:b/replica:0/task:0 transport=grpc: {said_by_a}"
        assert line in cluster["a", 0].logged()
        refused = [
            line
            for line in cluster["b", 0].logged().splitlines()
            if "refused peer /job:a/replica:0/task:0" in line
        ]
        assert len(refused) == 1, refused  # however often it tries
        assert said_by_b in refused[0]
        assert cluster["b", 0].stats()["errors"]["authentication"] > 0
        assert ONE not in logged(cluster)


def test_a_secret_is_replaced_while_the_job_runs(tmp_path: Path) -> None:
    """Old; old and new; new and old; new: file by file, and a task that starts anew is let in."""
    files = {job: written(tmp_path / job, ONE) for job in JOBS}
    of_a, of_b = (environment(path, FALLBACK="forbid") for path in files.values())
    with two_tasks(of_a, of_b) as cluster:
        assert runs(cluster)
        for secrets in ((ONE, TWO), (TWO, ONE), (TWO,)):
            for path in files.values():
                written(path, *secrets)
                cluster["b", 0].end()
                cluster.tasks["b", 0] = task = Task("b", 0, "rdma", cluster.spec, of_b)
                assert task.wait_ready() == {"ready": True}
                assert eventually(lambda: runs(cluster), 30)
        assert paths(cluster) == {"shm"}


@pytest.mark.parametrize("collectives", ["direct", "ring"])
def test_a_secret_is_repaired_amid_reductions(collectives: str, tmp_path: Path) -> None:
    """Buffers that went over gRPC have the keys of those that come over the fabric later."""
    files = [written(tmp_path / "0", ONE), written(tmp_path / "1", TWO)]
    only_for = {
        index: {"RDMA_TRANSPORT_SECRET_FILE": str(path)} for index, path in enumerate(files)
    }
    mode = {"RDMA_TRANSPORT_COLLECTIVES": collectives}
    with CollectiveCluster(2, "rdma", mode, only_for=only_for) as cluster:

        def digests() -> set[str]:
            answers = cluster.run("all_reduce", 40_000, 5, seconds=patient(20))
            return {answer["digest"] for answer in answers}

        def by_fabric() -> bool:
            assert digests() == first
            return {p["transport"] for w in cluster.workers for p in w.stats()["peers"]} == {"shm"}

        first = digests()
        assert len(first) == 1
        assert any(worker.stats()["sent"]["grpc"]["tensors"] for worker in cluster.workers)
        written(files[1], ONE)
        assert eventually(by_fabric, 40)
        for _ in range(5):
            assert digests() == first


def runs(cluster: Cluster) -> bool:
    """Whether a new session's step succeeds; the first one after a restart may not."""
    try:
        with Graph(cluster, there_and_back) as graph:
            return bool(graph.run(timeout_in_ms=10_000) == [0.0])
    except (tf.errors.UnavailableError, tf.errors.AbortedError):
        return False


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (None, 0o600, "No such file"),
        ("", 0o600, "it is empty"),
        ("short", 0o600, "fewer than 32 characters"),
        (ONE, 0o644, "chmod 600"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_at_the_start(
    text: str | None, mode: int, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    if text is not None:
        written(path, text, mode=mode)
    with pytest.raises(NotStartedError, match=why) as caught:
        Cluster({"a": 1}, "rdma", environment(path))
    assert caught.value.error == "InvalidArgumentError"
    assert f"RDMA_TRANSPORT_SECRET_FILE={path}" in caught.value.message
    found = checks(run("doctor", "--quick", "--json", settings=environment(path)))["secret"]
    assert found["status"] == "FAIL"
    assert why in found["found"]


# --- tf.data service ---

READER = """
import json, sys
import tensorflow as tf
from tensorflow.python.data.experimental.ops import data_service_ops
import rdma_transport
service = tf.data.experimental.service
dataset = tf.data.Dataset.range(5).map(lambda i: tf.fill([5000], i)).apply(
    service.distribute(
        service.ShardingPolicy.OFF, "grpc://" + sys.argv[1], data_transfer_protocol="rdma",
        compression=None))
try:
    values = sorted(int(element[0]) for element in dataset)
except tf.errors.OpError as error:
    values = str(error)
print("\\n" + json.dumps([values, rdma_transport.stats()]))
"""


def read_by_another(served: DataService, settings: dict[str, str]) -> tuple[Any, dict[str, Any]]:
    """What a reader in a process of its own got, and what its transport did."""
    ran = forked.run(["-c", READER, served.dispatcher], os.environ | settings, timeout=60)
    assert ran.returncode == 0, ran.stderr
    values, stats = json.loads(ran.stdout.splitlines()[-1])
    return values, stats


@pytest.mark.parametrize("fabric", FABRICS)
def test_readers_and_workers_of_the_data_service(fabric: str, secret: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other", TWO)
    worker = DataService(1, environment=environment(secret, fabric)).wait_ready()
    try:
        values, stats = read_by_another(worker, environment(secret, fabric))
        assert values == [0, 1, 2, 3, 4]
        assert stats["data_service"]["received"]["elements"] >= 5
        for path, why in ((other, "its secret differs"), (None, "this task has none")):
            values, stats = read_by_another(worker, environment(path, fabric))
            assert values == [0, 1, 2, 3, 4]
            assert stats["data_service"]["received"]["elements"] == 0
            reasons = stats["fallback_reasons"]
            assert any("data service" in r and why in r for r in reasons), reasons
        assert worker.stats()["errors"]["authentication"] > 0
        assert "refused peer tf.data reader" in worker.logged()
    finally:
        worker.end()


def test_a_worker_that_forbids_grpc_is_not_read_without_the_secret(secret: Path) -> None:
    worker = DataService(1, environment=environment(secret, FALLBACK="forbid")).wait_ready()
    try:
        values, _ = read_by_another(worker, {})
        assert "this task has none" in values
        assert read_by_another(worker, environment(secret))[0] == [0, 1, 2, 3, 4]
    finally:
        worker.end()


# --- The command ---


def test_the_doctor_authenticates_and_says_what_is_wrong(secret: Path, tmp_path: Path) -> None:
    def doctor(place: str, path: Path | None) -> dict[str, Any]:
        ran = run("doctor", "--quick", "--json", "--peer", place, settings=environment(path))
        assert ONE not in ran.stdout + ran.stderr
        return checks(ran)

    with Cluster({"a": 1}, "rdma", environment(secret)) as cluster:
        place = cluster.spec["a"][0]
        found = doctor(place, secret)
        assert found["peer_transport"]["found"].startswith("shm, same host; round trip")
        assert found["secret"]["found"] == f"{secret}: signs with the first line"
        for path, why in ((written(tmp_path / "2", TWO), "its secret differs"), (None, "has none")):
            path_found = doctor(place, path)["peer_transport"]
            assert path_found["status"] == "WARN"
            assert why in path_found["found"]
            assert "openssl rand -hex 32" in path_found["fix"]["shell"]
    with Cluster({"a": 1}, "rdma") as cluster:
        found = doctor(cluster.spec["a"][0], secret)
        assert "it has no secret" in found["peer_transport"]["found"]


def test_the_settings_show_the_path_alone(secret: Path) -> None:
    for more in ((), ("--json",)):
        ran = run("config", *more, settings=environment(secret))
        assert str(secret) in ran.stdout
        assert ONE not in ran.stdout + ran.stderr


# --- By hand ---


@pytest.mark.parametrize("fabric", FABRICS)
def test_channels_by_hand_with_a_key(fabric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rdma_transport.fabric import Device, FabricError, FabricValueError

    for name, value in environment(None, fabric).items():
        monkeypatch.setenv(name, value)
    with Device.open(fabric) as here, Device.open(fabric) as there:
        for keys, works in (
            ((b"k" * 32, b"k" * 32), True),
            ((b"k" * 32, b"K" * 32), False),
            ((b"k" * 32, b""), False),
            ((b"", b"k" * 32), False),
        ):
            active, passive = here.open_channel(), there.open_channel()
            passive.connect(active.address, active=False, key=keys[0])
            active.connect(passive.address, active=True, key=keys[1])
            if works:
                active.wait_connected(10)
                passive.wait_connected(10)
                active.notify(b"hello")
                assert passive.receive(10) == b"hello"
            else:
                with pytest.raises(FabricError):
                    active.wait_connected(3)
                with pytest.raises(FabricError):
                    passive.wait_connected(0.1)
        with pytest.raises(FabricValueError, match="at least 32"):
            here.open_channel().connect(there.open_channel().address, active=True, key=b"short")


def test_two_doctors_with_different_secrets(secret: Path) -> None:
    from rdma_transport.doctor import meeting

    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RDMA_TRANSPORT_FABRIC", "shm")
            patch.setenv("RDMA_TRANSPORT_SECRET_FILE", str(secret))
            place = f"127.0.0.1:{server.getsockname()[1]}"
            client = forked.Process(
                ["-m", "rdma_transport.cli", "doctor", "--quick", "--peer", place],
                {k: v for k, v in os.environ.items() if not k.startswith("RDMA_TRANSPORT_")},
            )
            connection, _ = server.accept()
            with connection:
                result = meeting.receive(connection, meeting.opened())
            client.wait(patient(60))
    assert result.status == "FAIL"
    assert "this task has none" in result.found
