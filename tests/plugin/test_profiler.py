"""TensorFlow's profiler shows what tasks send and receive."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.support.cluster import Cluster
from bench.support.collective_cluster import CollectiveCluster
from tests.support.observing import WIDE, job, repeated
from tests.support.profiles import Event, Profile, collect, in_trace_viewer

pytestmark = pytest.mark.timeout(120)
A, B = "/job:a/replica:0/task:0", "/job:b/replica:0/task:0"


def tensor_of(event: Event) -> tuple[int, str]:
    return event.values["step_id"], event.values["key"]


def profile(cluster: Cluster) -> tuple[Profile, Profile]:
    """What a and b do while a sends to b."""
    with job(cluster):
        one, other = collect(
            [cluster.target("a"), cluster.target("b")],
            lambda found: all(found) and len(common(*found)) > 1,
        )
    return (one, other) if "rdma send" in one else (other, one)


def common(one: Profile, other: Profile) -> set[tuple[int, str]]:
    """The tensors that both profiles have."""
    sides = (
        {tensor_of(event) for events in each.values() for event in events} for each in (one, other)
    )
    return set.intersection(*sides)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Profile, Profile]]:
    with Cluster({"a": 1, "b": 1}) as cluster:
        yield profile(cluster)


def test_sends_are_shown_with_what_was_sent(both: tuple[Profile, Profile]) -> None:
    a, b = both
    assert set(a) == {"rdma send"}
    assert set(b) == {"rdma receive", "rdma wait"}
    found = {(e.values["mode"], e.values["bytes"], e.values["peer"]) for e in a["rdma send"]}
    assert found == {("static", WIDE, B), ("inline", 4, B)}
    found = {(e.values["mode"], e.values["bytes"], e.values["peer"]) for e in b["rdma receive"]}
    assert found == {("static", WIDE, A), ("inline", 4, A)}


def test_both_ends_of_a_tensor_have_one_id(both: tuple[Profile, Profile]) -> None:
    a, b = both
    sent = {tensor_of(event): event.values["_p"] for event in a["rdma send"]}
    received = {tensor_of(event): event.values["_c"] for event in b["rdma receive"]}
    matched = sent.keys() & received.keys()
    assert len(matched) > 1
    assert {tensor: sent[tensor] for tensor in matched} == {
        tensor: received[tensor] for tensor in matched
    }
    assert len(set(sent.values())) == len(sent)


def test_each_receive_has_a_wait_that_ends_with_it(both: tuple[Profile, Profile]) -> None:
    _, b = both
    received = {tensor_of(event) for event in b["rdma receive"]}
    waited = {tensor_of(event) for event in b["rdma wait"]}
    # The profile may begin or end between the two.
    assert len(received ^ waited) <= 4
    assert all(event.picoseconds > 0 for event in b["rdma wait"])


def test_tensorboard_shows_them_beside_the_kernels(tmp_path: Path) -> None:
    with Cluster({"a": 1, "b": 1}) as cluster, job(cluster):
        collect([cluster.target("a"), cluster.target("b")], all, tmp_path)
    seen = [in_trace_viewer(path) for path in tmp_path.iterdir()]
    names = [{event["name"] for event in events} for events in seen]
    assert len(names) == 2
    assert any({"rdma send", "RandomUniform"} <= each for each in names)
    assert any({"rdma wait", "rdma receive", "Square"} <= each for each in names)
    for event in (event for events in seen for event in events):
        if event["name"] in ("rdma send", "rdma receive"):
            assert {"key", "peer", "step_id", "bytes"} <= set(event["args"])
            assert event["dur"] > 0


def test_tensors_over_grpc_are_shown_as_such() -> None:
    with Cluster({"a": 1, "b": 1}, environment={"RDMA_TRANSPORT_FABRIC": "grpc"}) as cluster:
        a, b = profile(cluster)
    assert {event.values["mode"] for event in a["rdma send"] + b["rdma receive"]} == {"grpc"}
    assert {event.values["bytes"] for event in b["rdma receive"]} == {4, WIDE}


def test_collectives_are_shown() -> None:
    ring = {"RDMA_TRANSPORT_COLLECTIVES": "ring"}
    with CollectiveCluster(2, "rdma", ring) as cluster:
        targets = [f"grpc://{address}" for address in cluster.spec]
        names = {"rdma send", "rdma receive", "rdma wait"}
        with repeated(lambda: cluster.run("all_reduce", 1 << 16)):
            profiles = collect(targets, lambda found: all(set(each) == names for each in found))
    for each in profiles:
        # Each sends both parts, which are a little uneven.
        assert sum({event.values["bytes"] for event in each["rdma send"]}) == 1 << 16
        assert {event.values["mode"] for event in each["rdma receive"]} == {"dynamic"}
