"""`rdma-transport status`, and what each peer is counted with."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, get_type_hints, is_typeddict

import jsonschema
import pytest

import rdma_transport
from bench.support.cluster import Cluster
from rdma_transport import counters, live
from rdma_transport.observe import samples
from rdma_transport.stats import Edge, Peer, Stats
from tests.support.deadlines import patient
from tests.support.graphs import Graph
from tests.support.observing import WIDE, Terminal, job, run, wide_and_small

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster({"a": 1, "b": 1}) as made:
        yield made


def pid(cluster: Cluster, name: str = "a") -> int:
    return cluster[name, 0].pid


def peer(cluster: Cluster, name: str = "a") -> dict[str, Any]:
    (found,) = live.LiveServer(pid(cluster, name), os.geteuid()).stats()["peers"]
    return dict(found)


def bytes_of(modes: dict[str, Any]) -> int:
    return int(sum(mode["bytes"] for mode in modes.values()))


def valid(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator(samples.schema()).validate(document)
    return document


def test_each_peer_has_counters_of_which_the_totals_are_the_sums(cluster: Cluster) -> None:
    with Graph(cluster, wide_and_small) as graph:
        graph.run()
        before = peer(cluster)
        for _ in range(10):
            graph.run()
        after, other = peer(cluster), peer(cluster, "b")
    assert bytes_of(after["sent"]) - bytes_of(before["sent"]) == 10 * (WIDE + 4)
    assert after["task"] == "/job:b/replica:0/task:0" == other["local"]
    assert (after["sent"], after["received"]) == (other["received"], other["sent"])
    stats = cluster["a", 0].stats()
    assert stats["sent"] == after["sent"]
    assert stats["tasks"] == ["/job:a/replica:0/task:0"]
    assert after["linked"]
    assert not after["lost"]
    assert after["links"] == 1
    assert time.time() - 60 < after["linked_at"] <= time.time()
    assert after["address"] == cluster.spec["b"][0]
    assert after["slots"]["agreed"] >= 1
    assert 0 <= after["ring"]["used_bytes"] <= after["ring"]["capacity_bytes"]
    assert after["last_error"] == ""


def numbers(value: object) -> int:
    """How many numbers it has, without flags."""
    if isinstance(value, dict):
        return sum(map(numbers, value.values()))
    return isinstance(value, int | float) and not isinstance(value, bool)


def test_every_number_is_a_counter_of_the_table(cluster: Cluster) -> None:
    with Graph(cluster, wide_and_small) as graph:
        graph.run()
    stats = live.LiveServer(pid(cluster), os.geteuid()).stats()
    (one,) = stats.pop("peers")
    counted = [(each.kind, value) for each in counters.PROCESS for _, value in each.values(stats)]
    assert sum(numbers(value) for _, value in counted) == numbers(stats) - 1  # the format
    assert all(isinstance(value, dict if kind == "histogram" else int) for kind, value in counted)
    counted = [value for counter in counters.PEER for _, value in counter.values(one)]
    assert len(counted) == numbers(one) - 1  # linked_at


def test_a_peer_that_is_restarted_shows_it() -> None:
    with Cluster({"a": 1, "b": 1}) as cluster:
        with Graph(cluster, wide_and_small) as graph:
            graph.run()
        cluster.restart("b", 0)
        lost = peer(cluster)
        assert lost["lost"]
        assert "has disconnected" in lost["last_error"]
        with Graph(cluster, wide_and_small) as graph:
            graph.run()
        again = peer(cluster)
        assert (again["links"], again["linked"], again["lost"]) == (2, True, False)
        assert bytes_of(again["sent"]) == 2 * (WIDE + 4)
        shown = run("status", pid(cluster), "--interval", 0).stdout
        assert "reconnected 1×" in shown
        assert "last error: peer /job:b/replica:0/task:0 has disconnected" in shown


def test_in_a_pipe_it_is_one_plain_table(cluster: Cluster) -> None:
    with job(cluster):
        ran = run("status", pid(cluster), "--interval", patient(1))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    assert f"a:0  (process {pid(cluster)})" in ran.stdout
    (row,) = re.findall(r"^ +b:0 .*$", ran.stdout, re.MULTILINE)
    assert re.search(r"shm +up \d+ s +[\d.]+ [KM]iB/s +0 B/s ", row), row
    assert re.search(r"static [\d.]+%, .*inline [\d.]+%", row), row
    assert re.search(r"errors +none", ran.stdout)
    without = run("status", pid(cluster), "--interval", 0).stdout
    assert "/s" not in without  # nothing was measured


def test_json_is_what_the_schema_says_and_rates_are_measured(cluster: Cluster) -> None:
    seconds = patient(2)
    jsonschema.Draft202012Validator.check_schema(samples.schema())
    with job(cluster):
        ran = run("status", pid(cluster), pid(cluster, "b"), "--json", "--interval", seconds)
    document = valid(ran.stdout)
    assert ran.stderr == ""
    a, b = sorted(document["processes"], key=lambda process: process["tasks"])
    assert (a["tasks"], b["tasks"]) == (["/job:a/task:0"], ["/job:b/task:0"])
    rates = a["peers"][0]["rates"]
    sent = rates["sent_bytes_per_second"]
    # Each of the two samples may fall between the two tensors of a step, or into the count of one.
    tensors = round(rates["sent_tensors_per_second"] * a["interval_seconds"])
    assert tensors > 4
    mean = sent / rates["sent_tensors_per_second"]
    assert mean == pytest.approx((WIDE + 4) / 2, rel=4 / tensors)
    assert b["peers"][0]["rates"]["received_bytes_per_second"] == pytest.approx(sent, rel=0.5)
    assert seconds <= a["interval_seconds"] < 10 * seconds
    document = valid(run("status", pid(cluster), "--json", "--interval", 0).stdout)
    assert document["processes"][0]["rates"] is document["processes"][0]["interval_seconds"] is None
    assert not jsonschema.Draft202012Validator(samples.schema()).is_valid(document | {"more": 1})


def test_the_picture_shows_the_same(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "status.svg"
    ran = run("status", pid(cluster), "--interval", 0, "-o", path)
    assert (ran.returncode, ran.stderr) == (0, "")
    picture = path.read_text()
    assert f"(process&#160;{pid(cluster)})" in picture
    assert "@font-face" not in picture
    assert "monospace" in picture
    ran = run("status", pid(cluster), "-o", tmp_path / "status.png")
    assert (ran.returncode, "ends in .svg" in ran.stderr) == (2, True)


def test_in_a_terminal_it_refreshes_until_ctrl_c(cluster: Cluster) -> None:
    with job(cluster), Terminal(["status", pid(cluster), "--interval", "0.2"]) as terminal:
        first = terminal.wait_for("B/s", "ring", r"[\d,]+ hits")
        (hits,) = re.findall(r"[\d,]+ hits", first)
        terminal.wait_for(rf"(?!{hits})\b[\d,]+ hits")
        terminal.interrupt()
        assert terminal.end() == 130
        assert b"Traceback" not in terminal.raw
        assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l")  # the cursor


def test_a_narrow_terminal_shows_all_in_whole_words(cluster: Cluster) -> None:
    narrow = ["status", pid(cluster), "--once", "--interval", 0]
    with job(cluster), Terminal(narrow, columns=80) as terminal:
        assert terminal.end() == 0
        screen = terminal.screen()
    assert re.search(r"^ +peer b:0$", screen, re.MULTILINE)
    for cell in ("transport shm", r"link up \d+ s", r"modes static [\d.]+%.*", r"ring \d+ %"):
        assert re.search(rf"(^|   ) *{cell}($|   )", screen, re.MULTILINE), screen


def test_the_types_of_counters_are_those_of_the_values(cluster: Cluster) -> None:
    def check(types: type, value: dict[str, Any]) -> None:
        kinds = get_type_hints(types)
        assert set(kinds) == set(value)
        for name, kind in kinds.items():
            if is_typeddict(kind):
                check(kind, value[name])

    with job(cluster):
        values = live.LiveServer(pid(cluster), os.geteuid()).stats()
    check(Stats, values)
    check(Peer, values["peers"][0])
    check(Edge, values["plan"]["edges"][0])


def test_the_edges_of_the_plan_and_what_happened(cluster: Cluster) -> None:
    with job(cluster):
        ran = run("status", pid(cluster), "--edges", "--interval", 0)
        document = valid(run("status", pid(cluster), "--edges", "--json", "--interval", 0).stdout)
    assert (ran.returncode, ran.stderr) == (0, "")
    (row,) = re.findall(r"^.*wide.*$", ran.stdout, re.MULTILINE)
    assert re.search(r"b:0 +static +64.00 KiB +[\d,]+ +\d+ ", row), row
    assert row.rstrip().endswith("planned from the graph")
    edges = document["processes"][0]["plan"]["edges"]
    (wide,) = [edge for edge in edges if "wide" in edge["name"]]
    assert (wide["bytes"], wide["mode"], wide["hits"] > 0) == (WIDE, "static", True)


def test_it_ends_with_the_process_that_it_watches() -> None:
    with Cluster({"a": 1}) as alone, Terminal(["status", pid(alone)]) as terminal:
        terminal.wait_for("no peers yet")
        alone["a", 0].end()
        assert terminal.end() == 0
        assert "all processes have ended; above is their last status" in terminal.screen()
        assert f"(process {pid(alone)})" in terminal.screen()


def test_who_ended_is_named_while_others_are_watched(cluster: Cluster) -> None:
    with Cluster({"a": 1}) as other, job(cluster):
        watched = ["status", pid(other), pid(cluster), "--interval", "0.2"]
        with Terminal(watched, lines=60) as terminal:
            terminal.wait_for("no peers yet", r"a:0 +b:0 +shm")
            other["a", 0].end()
            terminal.wait_for(f"process {pid(other)} has ended", r"a:0 +b:0 +shm")


def test_who_does_not_answer_is_named(cluster: Cluster) -> None:
    with Cluster({"a": 1}) as other:
        os.kill(pid(other), signal.SIGSTOP)
        try:
            ran = run("status", pid(other), "--interval", 0)
            assert (ran.returncode, ran.stdout) == (1, "")
            why = "does not answer; check if it is stopped"
            assert ran.stderr == f"error: process {pid(other)} {why}\n"
            both = valid(run("status", pid(other), pid(cluster), "--json", "--interval", 0).stdout)
        finally:
            os.kill(pid(other), signal.SIGCONT)
    assert [one["pid"] for one in both["processes"]] == [pid(cluster)]
    assert [one["pid"] for one in both["silent"]] == [pid(other)]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["999999999"], 1, "there is no process 999999999"),
        (["1"], 1, "process 1 has no rdma server, or has not started it yet"),
        (["worker"], 2, "'worker' is neither a process id nor 'all'"),
        (["--interval", "soon"], 2, "--interval"),
        (["--interval", "-1"], 2, "--interval"),
    ],
)
def test_what_cannot_be_shown_is_a_sentence(words: list[str], code: int, sentence: str) -> None:
    ran = run("status", *words)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr


def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_all_servers", set)
    with pytest.raises(LookupError, match="no task of this user has an rdma server on this host"):
        live.find([])


ANSWERING = """
import os, socket, sys, time
answer, pause, user = bytes.fromhex(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
owner = os.geteuid()
os.seteuid(user)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(f"\\0rdma_transport.status.{owner}.{os.getpid()}")
    listener.listen(1)
    print("ready", flush=True)
    while sys.argv[4] == "True":
        with listener.accept()[0] as connection:
            try:
                if answer:
                    connection.recv(100)
                    connection.sendall(answer)
                while pause >= 0:
                    time.sleep(pause)
                    connection.sendall(answer)
            except OSError:
                pass
    time.sleep(60)
"""


@contextmanager
def answering(
    answer: bytes, pause: float = -1, user: int | None = None, listens: bool = True
) -> Iterator[int]:
    """A process that answers so, with a `pause` again and again; nothing: it hangs up.

    The socket has the name of this user's, and is opened by `user`.
    """
    opener = os.geteuid() if user is None else user
    words = [answer.hex(), str(pause), str(opener), str(listens)]
    command = [sys.executable, "-c", ANSWERING, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def test_another_version_is_said_to_be_one() -> None:
    with answering(b'{"loaded": true, "plan": {"edges": []}}') as number:
        ran = run("status", number, "--interval", 0)
    assert ran.returncode == 1
    assert f"process {number} has another version of rdma_transport" in ran.stderr


def odd(name: str) -> bytes:
    known = json.dumps(rdma_transport.stats()).encode()
    return {
        "no JSON": b"once upon a time",
        "half of it": known[: len(known) // 2],
        "no text": b'{"format": "\xff\xfe"}',
        "nested": b"[" * 20_000,
        "a list": b"[1, 2]",
        "no plan": b'{"format": 1}',
        "odd peers": known.replace(b'"peers": []', b'"peers": [{"task": 7}]'),
        "nothing": b"",
    }[name]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no JSON", "is not JSON"),
        ("half of it", "is not JSON"),
        ("no text", "is not text"),
        ("nested", "is not JSON"),
        ("a list", "is not a status"),
        ("no plan", "has another version of rdma_transport"),
        ("odd peers", "has another version of rdma_transport"),
        ("nothing", "ended before it answered"),
    ],
)
def test_an_odd_answer_does_not_hide_the_others(cluster: Cluster, name: str, sentence: str) -> None:
    with answering(odd(name)) as number:
        ran = run("status", number, pid(cluster), "--json", "--interval", 0)
    document = valid(ran.stdout)
    assert [one["pid"] for one in document["processes"]] == [pid(cluster)]
    (silent,) = document["silent"]
    assert (silent["pid"], sentence in silent["reason"]) == (number, True), silent


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch, pause: float) -> None:
    """By its size, or if each part comes in time, by the time that all may take."""
    monkeypatch.setattr(live, "_MAX_STATS_BYTES", 1 << 20)
    sentence = "does not answer" if pause else "sent more than 1 MiB"
    with answering(b'{"x": 1, ' * 5_000, pause) as number:
        start = time.monotonic()
        with pytest.raises(ConnectionError, match=sentence):
            live.LiveServer(number, os.geteuid()).stats(timeout=0.5 if pause else 30)
        assert time.monotonic() - start < patient(20)


def test_a_full_queue_is_waited_for_only_so_long() -> None:
    with answering(b"", listens=False) as number:
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(8)]
        try:
            for one in waiting:
                one.setblocking(False)
                with suppress(BlockingIOError):
                    one.connect(f"\0rdma_transport.status.{os.geteuid()}.{number}")
            with pytest.raises(ConnectionError, match="does not answer"):
                live.LiveServer(number, os.geteuid()).stats(timeout=0.3)
        finally:
            for one in waiting:
                one.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_name_that_another_user_took_is_not_trusted(cluster: Cluster) -> None:
    known = json.dumps(rdma_transport.stats()).encode()
    with answering(known, user=65534) as number:
        ran = run("status", number, pid(cluster), "--json", "--interval", 0)
    document = valid(ran.stdout)
    assert [one["pid"] for one in document["processes"]] == [pid(cluster)]
    (silent,) = document["silent"]
    assert "was opened by user 65534, not by user 0" in silent["reason"]


def test_another_users_process_answers_only_to_that_user(monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    with answering(b"") as number:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        why = f"belongs to user {user} and answers only to that"
        with pytest.raises(ConnectionError, match=why):
            live.LiveServer(number, user).stats()
