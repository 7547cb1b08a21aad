"""`rdma-transport timeline`: single transfers, on both sides."""

import json
import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.support.cluster import Cluster
from rdma_transport import live
from rdma_transport.observe import recording
from tests.support.deadlines import eventually, patient
from tests.support.graphs import Graph
from tests.support.observing import WIDE, job, run, start, wide_and_small

pytestmark = pytest.mark.timeout(60)
MANY = 100_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster({"a": 1, "b": 1}) as made:
        yield made


def server(cluster: Cluster, name: str) -> live.LiveServer:
    return live.LiveServer(cluster[name, 0].pid, os.geteuid())


def all_is_back(cluster: Cluster) -> bool:
    """Whether b has given back to a all that it got: nobody waits for that."""
    (peer,) = server(cluster, "a").stats()["peers"]
    return not peer["slots"]["busy"] and not peer["outstanding_tensors"]


def checked(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The slices, after what a viewer relies on was looked at."""
    assert json.loads(json.dumps(trace)) == trace
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] in ("thread_name", "process_name")
    }
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    by_lane = defaultdict(list)
    for event in slices:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert names[event["pid"], event["tid"]].split()[0] in ("to", "from")
        assert (event["pid"], 0) in names
        by_lane[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for lane in by_lane.values():
        lane.sort()
        for (_, end), (begin, _) in pairwise(lane):
            assert begin >= end - 1e-3  # a nanosecond, in rounding
    arrows: dict[int, dict[str, Any]] = defaultdict(dict)
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            arrows[event["id"]][event["ph"]] = event
            # It starts and ends at the beginning of a slice.
            assert any(s["ts"] == event["ts"] and s["tid"] == event["tid"] for s in slices)
    for pair in arrows.values():
        assert pair["s"]["pid"] != pair["f"]["pid"]
        assert pair["s"]["ts"] <= pair["f"]["ts"]
        assert pair["f"]["bp"] == "e"
    assert {event["ph"] for event in trace["traceEvents"]} <= set("MXsf")
    return slices


def test_a_known_transfer_is_on_both_sides_with_equal_bytes(cluster: Cluster) -> None:
    servers = [server(cluster, "a"), server(cluster, "b")]
    with Graph(cluster, wide_and_small) as graph:
        for _ in range(5):
            graph.run()
        recordings = [one.trace(MANY) for one in servers]
        for _ in range(3):
            graph.run()
        assert eventually(lambda: all_is_back(cluster))
        kept = {one.server.pid: one.end() for one in recordings}
    trace = recording.build(kept)
    slices = checked(trace)
    sides = {
        side: [event for event in slices if event["cat"].split(",")[0] == side]
        for side in ("send", "receive")
    }
    for side, task in (("send", "a"), ("receive", "b")):
        found = sides[side]
        assert {event["pid"] for event in found} == {cluster[task, 0].pid}
        assert Counter(event["args"]["bytes"] for event in found) == {WIDE: 3, 4: 3}
        assert {event["args"]["peer"] for event in found} == {"b:0" if task == "a" else "a:0"}
        assert all(re.fullmatch(r"edge_\d+_(wide|small)\S*", event["name"]) for event in found)
        assert len({event["args"]["step"] for event in found}) == 3
    paths = {(event["args"]["bytes"], event["args"]["mode"]) for event in slices}
    assert paths == {(WIDE, "static"), (4, "inline")}
    assert all(event["args"]["handed_over"] for event in sides["receive"])
    assert sum(event["args"]["released"] for event in sides["send"]) >= 5
    assert sum(event["ph"] == "s" for event in trace["traceEvents"]) == 6
    for arrow in (event for event in trace["traceEvents"] if event["ph"] == "s"):
        (send,) = [s for s in sides["send"] if (s["ts"], s["tid"]) == (arrow["ts"], arrow["tid"])]
        (end,) = [e for e in trace["traceEvents"] if e["ph"] == "f" and e["id"] == arrow["id"]]
        (receipt,) = [r for r in sides["receive"] if (r["ts"], r["tid"]) == (end["ts"], end["tid"])]
        for same in ("bytes", "mode", "step"):
            assert send["args"][same] == receipt["args"][same]
        assert send["name"] == receipt["name"]


def test_what_goes_by_grpc_is_there_too() -> None:
    with Cluster({"a": 1, "b": 1}, environment={"RDMA_TRANSPORT_FABRIC": "grpc"}) as cluster:
        with Graph(cluster, wide_and_small) as graph:
            graph.run()
            recordings = [server(cluster, name).trace(MANY) for name in "ab"]
            graph.run()
            kept = {one.server.pid: one.end() for one in recordings}
    slices = checked(recording.build(kept))
    assert Counter((e["cat"], e["args"]["bytes"]) for e in slices) == {
        (f"{side},grpc", size): 1 for side in ("send", "receive") for size in (WIDE, 4)
    }


def test_the_command_writes_a_file(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    pids = [cluster[name, 0].pid for name in "ab"]
    with job(cluster):
        ran = run("timeline", *pids, "--seconds", "1", "-o", path)
        assert (ran.returncode, ran.stdout) == (0, "")
        summary = r"[\d,]+ events, [\d,]+ matched send/receive pairs, from 2 processes"
        assert re.search(summary, ran.stderr)
        assert checked(json.loads(path.read_text()))
        ran = run("timeline", pids[0], "--seconds", "1", "-o", "-", "--events", 10)
    assert " dropped " in ran.stderr
    one_sided = json.loads(ran.stdout)
    assert len(checked(one_sided)) <= 10
    assert one_sided["otherData"]["dropped_events"] > 0


def test_nothing_moves(cluster: Cluster, tmp_path: Path) -> None:
    pid = cluster["a", 0].pid
    ran = run("timeline", pid, "--seconds", "0.05", "-o", tmp_path / "t.json")
    assert ran.returncode == 0
    assert "no transfer started during the recording" in ran.stderr
    assert checked(json.loads((tmp_path / "t.json").read_text())) == []


def test_one_at_a_time_and_ctrl_c_ends_it(cluster: Cluster, tmp_path: Path) -> None:
    pid = cluster["a", 0].pid
    assert not server(cluster, "a").stats()["tracing"]
    first = start("timeline", pid, "--seconds", "60", "-o", tmp_path / "first.json")
    assert eventually(lambda: server(cluster, "a").stats()["tracing"], seconds=20)
    assert "timeline  recording" in run("status", pid, "--interval", 0).stdout
    second = run("timeline", pid, "--seconds", "0.01", "-o", tmp_path / "second.json")
    assert second.returncode == 1
    assert f"process {pid}: another client is recording a timeline; try again later" in (
        second.stderr
    )
    assert "error: no process could be recorded" in second.stderr
    first.send_signal(signal.SIGINT)
    out, error = first.communicate(timeout=patient(20))
    assert (first.returncode, out) == (0, ""), error
    assert "no transfer started during the recording" in error
    assert checked(json.loads((tmp_path / "first.json").read_text())) == []
    recorded, failed = recording.record([server(cluster, "a")], 0.01, 10)
    assert (list(recorded), failed) == ([pid], [])


def test_a_process_that_ends_meanwhile_is_named() -> None:
    with Cluster({"a": 1}) as alone:
        pid = alone["a", 0].pid
        kept = server(alone, "a").trace(MANY)
        alone["a", 0].end()
        with pytest.raises(ConnectionError, match=f"process {pid} ended before it answered"):
            kept.end()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["999999999"], 1, "there is no process 999999999"),
        (["x"], 2, "'x' is neither a process id nor 'all'"),
        (["PID", "-o", "/"], 2, "/ is a directory; give the name of a file in it"),
        (["PID", "-o", "/none/t.json"], 2, "there is no directory /none"),
        (["PID", "--seconds", "0"], 2, "--seconds"),
        (["PID", "--events", "0"], 2, "--events"),
    ],
)
def test_what_cannot_be_is_a_sentence(
    cluster: Cluster, words: list[str], code: int, sentence: str
) -> None:
    ran = run("timeline", *(word.replace("PID", str(cluster["a", 0].pid)) for word in words))
    assert (ran.returncode, ran.stdout) == (code, "")
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr


def kept(events: list[list[Any]]) -> dict[str, Any]:
    return {
        "began": 1000, "ended": 9000, "dropped": 0,
        "peers": [{"local": "/job:a/replica:0/task:0", "remote": "/job:b/replica:0/task:0"}],
        "keys": ["x;edge;0:0", "x;loop;3:7", "a key"], "events": events,
    }  # fmt: skip


def sent(begin: int, handle: int, key: int = 0) -> list[Any]:
    return [0, begin, begin + 5, 0, handle, 1, 64, "static", key]


def released(at: int, handle: int) -> list[Any]:
    return [1, at, at, 0, handle, 0, 0, "static", 0]


def test_spans_end_with_what_ends_them() -> None:
    found = recording.spans(
        7,
        kept([sent(2000, 4), released(1500, 4), sent(3000, 4), released(2500, 4), sent(4000, 0)]),
    )
    assert [(s.begin, s.end, s.ended) for s in found] == [
        (2000, 2500, True),  # a release before it was of a send before the recording
        (3000, 9000, False),  # its release never came
        (4000, 4005, True),  # has nothing to give back
    ]
    found = recording.spans(7, kept([sent(2000, 0, key) for key in (0, 1, 2)]))
    assert [span.name for span in found] == ["edge", "loop", "a key"]


def test_overlapping_spans_are_on_lines_of_their_own() -> None:
    trace = recording.build({7: kept([sent(2000, 4), sent(2001, 5), sent(8000, 6, key=1)])})
    slices = checked(trace)
    assert [event["tid"] for event in slices] == [1, 2, 3]
    assert [event["args"].get("iteration") for event in slices] == [None, None, "3:7"]
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["to b:0", "to b:0 (2)", "to b:0 (3)"]


def test_timelines_of_two_hosts_are_merged(tmp_path: Path) -> None:
    """The clock of the second is 5 ms ahead. Transfers take 2 us, or 10 us where it is busy."""
    ahead = 5_000_000
    names = {"local": "/job:a/replica:0/task:0", "remote": "/job:b/replica:0/task:0"}
    there = {"local": names["remote"], "remote": names["local"]}
    here_events, there_events = [], []
    for step, (begin, takes) in enumerate([(2000, 10_000), (30_000, 2000), (50_000, 10_000)]):
        here_events.append([0, begin, begin + 5, 0, 0, step, 64, "static", 0])
        there_events.append([2, begin + takes + ahead, begin + takes + ahead + 5, 0, 9, step, 64,
                             "static", 0])  # fmt: skip
    there_events.append([0, 70_000 + ahead, 70_005 + ahead, 0, 0, 9, 64, "static", 0])
    here_events.append([2, 72_000, 72_005, 0, 3, 9, 64, "static", 0])
    files = []
    for name, known, events in (("1", names, here_events), ("2", there, there_events)):
        later = ahead if name == "2" else 0
        times = {"began": 1000 + later, "ended": 90_000 + later}
        files.append(tmp_path / f"{name}.json")
        recording.write(recording.build({7: kept(events) | {"peers": [known]} | times}), files[-1])
    target = tmp_path / "both.json"
    ran = run("timeline", "--merge", files[0], "--merge", files[1], "-o", target)
    assert ran.returncode == 0, ran.stderr
    assert "8 events, 4 matched send/receive pairs, from 2 processes" in ran.stderr
    trace = json.loads(target.read_text())
    checked(trace)
    arrows: dict[str, dict[str, float]] = defaultdict(dict)
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            arrows[event["id"]][event["ph"]] = event["ts"]
    took = sorted(round(ends["f"] - ends["s"], 3) for ends in arrows.values())
    assert took == [2, 2, 10, 10]
    (tmp_path / "odd.json").write_text("{}")
    for other, why in (("odd.json", "is not a timeline of this version"), ("none", "No such file")):
        ran = run("timeline", "--merge", files[0], "--merge", tmp_path / other, "-o", target)
        assert (ran.returncode, why in ran.stderr) == (2, True), ran.stderr
    recording.write(recording.build({7: kept([sent(2000, 4)])}), tmp_path / "else.json")
    ran = run("timeline", "--merge", files[0], "--merge", tmp_path / "else.json", "-o", target)
    assert (ran.returncode, "no transfer of it is in the other" in ran.stderr) == (2, True)
