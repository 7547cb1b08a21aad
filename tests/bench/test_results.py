"""What the measurements find and say: values, paths, percentiles, and what must not be hidden."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import bench.fabric
from bench import exchange, numpy_collectives, runner
from bench.collectives import collectives, wrong_of
from bench.embeddings import embeddings
from bench.fabric import fabric
from bench.payloads import parse_payloads, payload
from bench.report import Result, Row, Times, as_json, bus_gbps, ratio_of, schema, times_of
from bench.support.cluster import Cluster
from bench.support.machine import facts
from bench.table import percent, sent, table
from bench.where import Where

pytestmark = pytest.mark.timeout(60)
JOBS = {"worker": 1, "ps": 1}
QUICK = {"seconds": 0.1, "warm_up": 0.02}


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_CALLS", 4)


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, Cluster]]:
    with Cluster(JOBS, "grpc") as grpc, Cluster(JOBS, "rdma") as rdma:
        yield {"grpc": grpc, "rdma": rdma}


def valid(*results: Result) -> None:
    document = json.loads(as_json([facts()], "rdma-transport bench", list(results)))
    jsonschema.Draft202012Validator(schema()).validate(document)


def test_payloads_are_those_of_the_paper() -> None:
    assert payload("small").sizes == (10,) * 10
    assert payload("medium", 3).sizes == (10240,) * 3
    assert payload("large", 1).bytes == 2**20
    assert payload("64KiB", 2).sizes == (65536, 65536)
    assert payload("burst").sizes == (4096,) * 300
    assert sorted(payload("skewed").sizes) == [10] + [10240] * 3 + [2**20] * 6
    assert {payload("uniform", 9).sizes.count(size) for size in (10, 10240, 2**20)} == {3}
    assert [each.name for each in parse_payloads("small, 4k", 1)] == ["small", "4 KiB"]


def test_percentiles_need_samples_beyond_them() -> None:
    few = times_of([3.0, 1.0, 2.0])
    assert (few.min, few.p50, few.mean, few.max, few.p99) == (1.0, 2.0, 2.0, 3.0, None)
    many = times_of([float(i) for i in range(1, 1001)])
    assert (many.p50, many.p99, many.p999, many.max) == (500.5, 990.0, 999.0, 1000.0)
    assert times_of([1.0] * 999).p999 is None


@pytest.mark.parametrize("kind", exchange.KINDS)
def test_a_message_of_many_buffers_over_both(kind: str, pairs: dict[str, Cluster]) -> None:
    messages = parse_payloads("small,skewed", 10)
    result = exchange.measure(kind, messages, pairs, **QUICK)
    runner._judge(result)
    valid(result)
    assert [(row.name, row.protocol) for row in result.rows] == [
        (name, protocol) for name in ("small", "skewed") for protocol in ("grpc", "rdma")
    ]
    assert runner._code([result]) == 0
    for row in result.rows:
        assert row.wrong == 0
        assert row.iterations >= 3
        assert row.times is not None
        assert 0 < row.times.min <= row.times.p50
        assert row.ratio is None or row.protocol == "rdma"  # noise may hide it
        assert (row.sent is not None) == (row.protocol == "rdma")
        assert (row.gbps is None) == (kind == "latency")
    _, small, _, skewed = (row.sent for row in result.rows)
    assert small is not None
    assert skewed is not None
    assert small["inline"]["tensors"] == sum(path["tensors"] for path in small.values()) > 0
    assert skewed["static"]["bytes"] > skewed["inline"]["bytes"] > 0
    assert {route["transport"] for route in result.routes} == {"shm"}
    assert "shared memory" in result.notes[0]


def test_every_worker_calls_every_server() -> None:
    with Cluster({"worker": 2, "ps": 2}) as cluster:
        result = exchange.measure("throughput", [payload("4KiB", 2)], {"rdma": cluster}, **QUICK)
    (row,) = result.rows
    assert row.wrong == 0
    # 4 counted calls of each worker to each server in each step
    assert row.iterations % (4 * 2 * 2) == 0
    assert row.per_second is not None
    assert row.gbps == pytest.approx(row.per_second * 8192 / 1e9)
    assert row.ratio is None


@pytest.mark.parametrize("kind", ["latency", "bandwidth"])
def test_values_that_are_not_those_sent_are_counted(kind: str, pairs: dict[str, Cluster]) -> None:
    with ExitStack() as stack:
        program = exchange.Program(kind, payload("small", 2), 1, 1)
        calls = exchange.Calls(stack, pairs["rdma"], program)
        assert calls.wrong() == 0
        calls.tick += 1  # so other values are expected than are sent
        assert calls.wrong() == 2 * (1 + program.count)
    result = Result(kind, "", {}, "p50", [Row("t", "n", 1, "rdma", 1, wrong=3)])
    runner._judge(result)
    assert runner._code([result]) == runner.FAILED


def test_what_was_asked_as_rdma_and_went_by_grpc_is_exit_code_3(
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = Where(fabric="grpc")
    (result,) = exchange.exchange(where, ["latency"], [payload("medium", 1)], **QUICK)
    runner._judge(result)
    valid(result)
    assert result.fallback
    assert runner._code([result]) == runner.NOT_AVAILABLE
    assert "fell back from rdma to gRPC: " in capsys.readouterr().err


def test_an_all_reduce_over_both() -> None:
    reduced = collectives(Where(("grpc", "rdma")), ["all_reduce"], [65536], repeat=6)
    runner._judge(reduced)
    assert reduced.problems == []
    valid(reduced)
    grpc, rdma = reduced.rows
    assert grpc.times is not None
    assert rdma.times is not None
    found = ratio_of(grpc.times, rdma.times)  # noise may hide what they are
    assert (rdma.ratio, rdma.at_least) == (found or (None, False))
    assert rdma.wrong == 0


def test_a_ratio_is_said_as_well_as_it_is_known() -> None:
    def times(median: float, around: float = 1.0) -> Times:
        return Times(median, low=median - around, high=median + around)

    assert ratio_of(times(20.0), times(10.0)) == (2.0, False)
    assert ratio_of(times(43.0), times(20.0, 15.0)) == (42.0 / 35.0, True)
    assert ratio_of(times(20.0), times(20.0, 15.0)) is None
    assert ratio_of(times(20.0), times(1.0, 2.0)) == (19.0 / 3.0, True)
    assert ratio_of(Times(20.0), Times(10.0)) == (2.0, False)


def test_the_fabric_counts_wrong_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    where, little = Where(fabric="shm"), {"iterations": 1000, "rounds": 2, "most": 2**20}
    right = fabric(where, [64], **little)
    valid(right)
    moves = [row for row in right.rows if "memcpy" not in row.test]
    assert [row.wrong for row in moves] == [0] * 6
    for row in moves:
        if row.times is not None:  # 99.9 % of 1000 are not all
            assert row.times.p999 is not None
            assert row.times.p999 <= row.times.max

    class Wrong(bench.fabric.Meter):
        def run(self, test: str, *plan: Any) -> tuple[list[float], int]:
            seconds, wrong = super().run(test, *plan)
            return seconds, wrong + 5 * (test == "write_bandwidth")

    monkeypatch.setattr(bench.fabric, "Meter", Wrong)
    result = fabric(where, [64], **little)
    assert {row.test: row.wrong for row in result.rows if row.wrong} == {"write_bw": 15}
    runner._judge(result)
    assert runner._code([result]) == runner.FAILED


def test_a_table_leaves_out_what_nobody_measured() -> None:
    times = Times(min=1.0, p50=2.0)
    plain = Row("edge", "64 B", 64, "rdma", 7, times)
    headings = [
        str(column.header) for column in table(Result("edges", "", {}, "p50", [plain])).columns
    ]
    assert headings == ["over", "#bytes", "#iter", "min", "p50"]
    assert percent(1.0) == "100 %"
    assert percent(0.999999) == "99.99 %"
    assert percent(0.000001) == "< 0.01 %"
    assert sent([plain]) == ""


FOLDER = Path(bench.__file__).parent
# Of a program, and without options.
CHILDREN = {
    "session_task",
    *("support.task", "support.collective_task", "support.data_service"),
    *("support.data_parallel_rank", "fabric"),
    *("support.floor_task", "support.tcp_floor_task", "support.numpy_rank"),
    "support.embedding_rank",
}
RUNNABLE = sorted(
    ".".join(path.relative_to(FOLDER).with_suffix("").parts)
    for path in FOLDER.glob("**/*.py")
    if '__name__ == "__main__"' in path.read_text()
)
PROGRAMS = [
    f"{FOLDER.name}.{name}".removesuffix(".__main__") for name in RUNNABLE if name not in CHILDREN
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_has_help_and_the_same_usage_errors(name: str) -> None:
    command = [sys.executable, "-m", name]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"Usage: python -m {name}")
    wrong = subprocess.run([*command, "--nonsense"], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "\nerror: No such option: --nonsense" in wrong.stderr


def test_more_than_two_workers_are_compared_with_each_other() -> None:
    def wrong(op: str, grpc: str, rdma: str) -> dict[str, int]:
        return wrong_of(op, {"grpc": list(grpc), "rdma": list(rdma)})

    assert wrong("all_reduce", "aa", "aa") == {"grpc": 0, "rdma": 0}
    assert wrong("all_reduce", "aa", "bb") == {"grpc": 0, "rdma": 2}
    assert wrong("all_reduce", "aaa", "bbb") == {"grpc": 0, "rdma": 0}
    assert wrong("all_reduce", "aaa", "bbc") == {"grpc": 0, "rdma": 1}
    assert wrong("broadcast", "aaa", "bbb") == {"grpc": 0, "rdma": 3}


@pytest.mark.parametrize("missing", [False, True])
def test_collectives_beside_mpi(missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _, why = numpy_collectives.find_mpi()
    if missing:
        monkeypatch.setattr(numpy_collectives, "find_mpi", lambda: ("", "it is missing"))
    systems, ops = ("rdma", "registered", "mpi"), numpy_collectives.OPS
    result = numpy_collectives.collectives(Where(), systems, ops, [4, 1 << 19], 2, 10, 1)
    runner._judge(result)
    assert result.problems == []
    valid(result)
    measured = {row.protocol for row in result.rows}
    assert measured == {"rdma", "registered"} | (set() if missing or why else {"mpi"})
    assert any("MPI was skipped" in note for note in result.notes) == bool(missing or why)
    assert {row.wrong for row in result.rows} == {0}
    assert {(row.test, row.bytes) for row in result.rows} == {
        *((op, size) for op in ops if op != "barrier" for size in (4, 1 << 19)),
        ("barrier", 0),
    }
    for row in result.rows:
        assert ("overlap %" in row.more) == (row.test == "iall_reduce")
        assert (row.bus_gbps is None) == (
            row.test in ("barrier", "iall_reduce", *numpy_collectives.MESSAGES)
        )


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """By its definition, from the time and from the size of the larger array."""
    ranks, part, seconds = 4, 1e9, 1.0
    gbps = part / seconds / 1e9  # of this project's size: of one rank's array or part
    assert bus_gbps("all_reduce", gbps, ranks) == gbps * 2 * 3 / 4
    for op in ("all_gather", "reduce_scatter", "all_to_all"):
        assert bus_gbps(op, gbps, ranks) == ranks * gbps * 3 / 4
    assert bus_gbps("broadcast", gbps, ranks) == gbps
    assert bus_gbps("barrier", gbps, ranks) is bus_gbps("all_reduce", None, ranks) is None


def test_collectives_beside_grpc() -> None:
    ops = ("all_reduce", "all_gather", "reduce_scatter")
    result = numpy_collectives.collectives(Where(), ("rdma", "grpc"), ops, [1 << 16], 2, 10, 1)
    valid(result)
    measured = {(row.test, row.protocol) for row in result.rows}
    assert measured == {*((op, "rdma") for op in ops), *((op, "grpc") for op in ops[:2])}
    ratios = {row.test: row.ratio for row in result.rows if row.protocol == "rdma"}
    assert ratios["reduce_scatter"] is None
    assert ratios["all_reduce"]


def test_embeddings_beside_parameter_servers() -> None:
    result = embeddings(Where(("grpc", "rdma")), [4], 1 << 16, repeat=3, rounds=2)
    valid(result)
    assert {row.protocol for row in result.rows} == {"grpc", "rdma", "table", "exchange"}
    (row,) = (row for row in result.rows if row.protocol == "table")
    assert row.iterations == 6
    assert row.ratio


def test_times_are_in_the_unit_of_the_table() -> None:
    row = Row("step", "gru", 1, "rdma", 1, Times(min=1500.0, p50=2000.0))
    made = table(Result("train", "", {}, "p50", [row], unit="ms"))
    cells = {str(column.header): list(column.cells) for column in made.columns}
    assert (cells["min"], cells["p50"]) == (["1.50"], ["2.00"])
    assert made.title == "; times in ms"
