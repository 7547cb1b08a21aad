"""`rdma-transport metrics`: what Prometheus gets."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import rdma_transport
from bench.support.cluster import Cluster, free_port
from rdma_transport import _native, counters
from rdma_transport.observe import exporter, reasons
from tests.support import pages
from tests.support.deadlines import eventually, patient
from tests.support.graphs import Graph
from tests.support.observing import WIDE, job, run, start, wide_and_small

pytestmark = pytest.mark.timeout(60)
DOCS = Path(__file__).parents[2] / "docs"
OBSERVE, REFERENCE = "docs/observe.md", "docs/reference.md"
DASHBOARD = DOCS / "grafana_dashboard.json"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster({"a": 1, "b": 1}) as made:
        with Graph(made, wide_and_small) as graph:
            graph.run()
        yield made


class Scrape:
    """The samples of one text, by name and labels."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.values = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }
        assert len(self.values) == sum(len(family.samples) for family in self.families)

    def __call__(self, name: str, cluster: Cluster, **labels: str) -> float:
        """Of task a."""
        known = {"job_id": str(cluster["a", 0].pid), "task": "/job:a/task:0"} | labels
        return self.values[("rdma_transport_" + name, *sorted(known.items()))]


def test_every_number_is_that_of_the_process(cluster: Cluster) -> None:
    ran = run("metrics", "--once")
    assert (ran.returncode, ran.stderr) == (0, "")
    scrape, stats = Scrape(ran.stdout), cluster["a", 0].stats()
    for mode, counts in stats["sent"].items():
        labels = {"peer": "/job:b/task:0", "mode": mode}
        assert scrape("sent_tensors_total", cluster, **labels) == counts["tensors"]
        assert scrape("sent_bytes_total", cluster, **labels) == counts["bytes"]
    assert stats["sent"]["inline"]["bytes"] > 0
    assert scrape("registrations_total", cluster) == stats["registrations"] > 0
    assert scrape("arena_limit_bytes", cluster) == stats["arena"]["limit_bytes"]
    assert scrape("plan_hits_total", cluster) == stats["plan"]["hits"]
    peer = {"peer": "/job:b/task:0"}
    assert scrape("peer_linked", cluster, transport="shm", **peer) == 1
    assert scrape("peer_lost", cluster, **peer) == 0
    assert scrape("peer_links_total", cluster, **peer) == 1
    assert scrape("peer_linked_timestamp_seconds", cluster, **peer) <= time.time()
    assert scrape("peer_slots", cluster, **peer) == stats["peers"][0]["slots"]["agreed"]
    assert scrape("up", cluster) == 1
    build = {"version": rdma_transport.__version__, "tensorflow": _native.TENSORFLOW_VERSION}
    assert scrape.values["rdma_transport_build_info", *sorted(build.items())] == 1


def test_reasons_and_errors_are_labels() -> None:
    with Cluster({"a": 1, "b": 1}, environment={"RDMA_TRANSPORT_FABRIC": "grpc"}) as cluster:
        with Graph(cluster, wide_and_small) as graph:
            graph.run()
        scrape = Scrape(run("metrics", "--once").stdout)
        peer = {"peer": "/job:b/task:0"}
        assert scrape("sent_bytes_total", cluster, mode="grpc", **peer) == WIDE + 4
        assert scrape("fallbacks_total", cluster, reason="setting") == 2
        assert scrape("fallbacks_total", cluster, reason="peer_lost") == 0  # known from the start
        assert scrape("peer_linked", cluster, transport="grpc", **peer) == 0


def test_each_documented_reason_has_a_code() -> None:
    """The table of the documentation: sentences, code, fix."""
    heading = "| reason in `fallback_reasons`"
    table = pages.text_of(REFERENCE).partition(heading)[2].partition("\n\n")[0]
    rows = [row.split(" | ") for row in table.splitlines()[2:]]
    for sentences, code, _ in rows:
        without_details = re.sub(r" \(.*\)", "", sentences.removeprefix("| "))
        for sentence in re.split(r", (?=a )| ?; ", without_details):
            assert f"`{reasons.code_of('fallbacks_total', sentence)}`" == code, sentence
    assert {code.strip("`") for _, code, _ in rows} == {*reasons.CODES["fallbacks_total"]}
    assert reasons.code_of("fallbacks_total", "what nobody thought of") == reasons.OTHER


Metrics = dict[str, set[str]]


@pytest.fixture(scope="module")
def exported(cluster: Cluster) -> Metrics:
    """The labels of each metric, as a query sees them; of some no series is there yet."""
    found: Metrics = {}
    text = run("metrics", "--once").stdout
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = set()
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def assert_it_can_be_asked(query: str, exported: Metrics) -> None:
    """Whether Prometheus parses it, and each metric and each label that it names is there."""
    metrics: list[str] = []
    labels = {"instance"}  # which Prometheus adds
    used: set[str] = set()

    def visit(part: promql_parser.Expr) -> bool:
        if isinstance(part, promql_parser.VectorSelector):
            metrics.append(part.name)
            used.update(matcher.name for matcher in part.matchers.matchers)
        modifier = getattr(part, "modifier", None)
        matching = getattr(modifier, "matching", modifier)
        used.update(matching.labels if matching else ())
        return True

    promql_parser.walk(promql_parser.parse(query), pre_visit=visit)
    assert metrics, query
    for name in metrics:
        assert name in exported, query
        labels |= exported[name]
    without_series = any(not exported[name] for name in metrics)  # as of reads and writes
    assert used <= labels or without_series, query


def test_the_dashboard_shows_all_metrics_and_no_others(exported: Metrics) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    for expression in asked:
        assert_it_can_be_asked(expression.replace("$__rate_interval", "1m"), exported)
    shown = {name.removesuffix("_bucket") for name in re.findall(r"rdma_transport_\w+", str(asked))}
    derived = {f"{name}_{part}" for name in shown for part in ("bucket", "count", "sum")}
    assert {*exported} - derived == shown
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    defined = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) <= defined | {
        *("__rate_interval", "__all")
    }


def test_series_are_those_of_a_job_if_it_has_an_id(cluster: Cluster) -> None:
    """So a task that starts again keeps its series."""
    words = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    environment = os.environ | {"SLURM_JOB_ID": "", "PBS_JOBID": "7.host"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert exporter.job_of(process.pid) == "7.host"
        finally:
            process.kill()
    assert exporter.job_of(cluster["a", 0].pid) == str(cluster["a", 0].pid)
    assert exporter.job_of(2**30) == str(2**30)


@pytest.mark.parametrize(
    ("heading", "metric"),
    [
        ('| in `stats()["plan"]["misses"]`', "plan_misses_total"),
        ("| reason | code in metrics | fix |", "ring_reasons_total"),
    ],
)
def test_each_documented_reason_of_a_plan_or_a_ring_has_a_code(heading: str, metric: str) -> None:
    table = pages.text_of(REFERENCE).partition(heading)[2].partition("\n\n")[0]
    found = set()
    for row in table.splitlines()[2:]:
        sentences, codes, *_ = row.removeprefix("| ").split(" | ")
        for sentence, code in zip(sentences.split(", "), codes.split(", "), strict=True):
            assert f"`{reasons.code_of(metric, sentence)}`" == code, sentence
            found.add(code.strip("`"))
    assert found == {*reasons.CODES[metric]}


def test_each_kind_of_error_is_a_series_from_the_start(cluster: Cluster) -> None:
    sources = (DOCS.parent / "native").rglob("*.cc")
    kinds = {
        kind for path in sources for kind in re.findall(r'errors\.Add\("(\w+)', path.read_text())
    }
    assert kinds == {*reasons.CODES["errors_total"]}
    scrape = Scrape(run("metrics", "--once").stdout)
    assert {scrape("errors_total", cluster, kind=kind) for kind in kinds} == {0}
    assert {f"`{kind}`" for kind in kinds} <= set(re.findall(r"`\w+`", pages.text_of(OBSERVE)))
    assert scrape("plan_misses_total", cluster, reason="no_free_slot") == 0


def test_the_alerts_ask_for_metrics_that_there_are(exported: Metrics) -> None:
    (group,) = yaml.safe_load((DOCS / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert_it_can_be_asked(rule["expr"], exported)
        assert promql_parser.parse_duration(rule["for"])
    assert len(group["rules"]) > 5


def test_names_follow_the_conventions_and_all_have_a_meaning(cluster: Cluster) -> None:
    text = run("metrics", "--once").stdout
    for family in Scrape(text).families:
        assert re.fullmatch(r"rdma_transport_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        if f"{family.name}_bucket" in text:
            assert (family.type, family.name.endswith("_seconds")) == ("histogram", True)
            continue
        assert family.type == ("counter" if f"{family.name}_total" in text else "gauge")


def test_every_counter_has_a_metric_of_its_own() -> None:
    table = (*counters.PROCESS, *counters.PEER)
    exported = [counter for counter in table if counter.metric]
    assert len({counter.metric for counter in exported}) == len(exported)
    for counter in exported:
        assert counter.metric.endswith("_total") == (counter.kind == "counter")
    assert {counter.key for counter in table} - {counter.key for counter in exported} == {
        "arena.capacity_bytes",  # region_bytes
        "plan.staged_bytes_by_site.{site}",  # may have many sites
    }


def test_histograms_count_each_tensor_and_grow_with_their_bounds(cluster: Cluster) -> None:
    text = run("metrics", "--once").stdout
    scrape, stats = Scrape(text), cluster["b", 0].stats()
    families = {family.name: family for family in scrape.families}
    b = {"job_id": str(cluster["b", 0].pid), "task": "/job:b/task:0"}
    for mode, received in stats["received"].items():
        labels = {**b, "mode": mode}
        assert scrape("receive_seconds_count", cluster, **labels) == received["tensors"]
        assert scrape("receive_seconds_sum", cluster, **labels) >= 0
        samples = families["rdma_transport_receive_seconds"].samples
        bounds = [
            (float(sample.labels["le"]), sample.value)
            for sample in samples
            if sample.name.endswith("_bucket") and sample.labels.items() >= labels.items()
        ]
        assert bounds == sorted(bounds)
        assert [count for _, count in bounds] == sorted(count for _, count in bounds)
        assert bounds[-1] == (float("inf"), received["tensors"])
    assert stats["received"]["inline"]["tensors"] > 0
    # Tensors in shared memory are mapped.
    assert scrape("transfer_seconds_count", cluster, operation="read") == 0


def test_two_servers_of_one_name_in_one_process_are_one_series() -> None:
    values = [(("1", "a"), 2.0), (("1", "b"), 3.0), (("1", "a"), 5.0)]
    family = exporter._family("sent_bytes_total", "Bytes.", ("job_id", "task"), values)
    assert [sample.value for sample in family.samples] == [7, 3]
    values = [
        (("1",), {"buckets": {"0.1": 1, "+Inf": 2}, "count": 2, "sum": 3.5}),
        (("1",), {"buckets": {"0.1": 4, "+Inf": 4}, "count": 4, "sum": 0.25}),
        (("2",), {"buckets": {"0.1": 0, "+Inf": 0}, "count": 0, "sum": 0}),
    ]
    family = exporter._histogram("receive_seconds", "Time.", ("job_id",), values)
    assert [sample.value for sample in family.samples] == [5, 6, 6, 3.75, 0, 0, 0, 0]


def test_steady_steps_register_nothing(cluster: Cluster) -> None:
    with job(cluster):
        scrapes = [Scrape(exporter.text())]

        def has_run() -> bool:
            scrapes.append(Scrape(exporter.text()))
            first, last = (scrapes[n]("plan_hits_total", cluster) for n in (0, -1))
            return last >= first + 100

        assert eventually(has_run, 20)
    assert len({scrape("registrations_total", cluster) for scrape in scrapes}) == 1


def test_it_is_scraped_until_ctrl_c(cluster: Cluster) -> None:
    process = start("metrics", "--listen", "127.0.0.1:0")
    assert process.stderr is not None
    line = process.stderr.readline()
    said = r"metrics at (http://127\.0\.0\.1:\d+/metrics); press Ctrl-C to stop\n"
    match = re.fullmatch(said, line)
    assert match, line
    for _ in range(2):
        with urllib.request.urlopen(match[1], timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert Scrape(answer.read().decode())("registrations_total", cluster) > 0
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=patient(20))
    assert (process.returncode, out, error) == (130, "", "")


def test_who_listens_to_all_is_warned() -> None:
    process = start("metrics", "--listen", "0.0.0.0:0")
    assert process.stderr is not None
    try:
        assert "can be reached from other hosts" in process.stderr.readline()
    finally:
        process.kill()
        process.communicate(timeout=patient(20))


def test_node_exporters_directory(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "rdma.prom"
    ran = run("metrics", "-o", file, "--once")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert os.listdir(tmp_path) == [file.name]
    assert Scrape(file.read_text())("registrations_total", cluster) > 0
    ran = run("metrics", "-o", tmp_path / "none" / "rdma.prom", "--once")
    assert ran.returncode == 2
    assert "there is no directory" in ran.stderr


def test_what_it_cannot_listen_on_is_a_sentence() -> None:
    for address in ("here", "localhost:port", "127.0.0.1:70000"):
        ran = run("metrics", "--listen", address)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert f"{address}: give PORT or HOST:PORT, such as 127.0.0.1:9449" in ran.stderr
    taken = free_port()
    process = start("metrics", "--listen", f"127.0.0.1:{taken}")
    assert process.stderr is not None
    try:
        process.stderr.readline()
        ran = run("metrics", "--listen", f"127.0.0.1:{taken}")
        assert ran.returncode == 2
        assert f"cannot listen on 127.0.0.1:{taken}: Address already in use" in ran.stderr
    finally:
        process.kill()
        process.communicate(timeout=patient(20))


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:9449", "127.0.0.1", 9449, True),
        ("localhost:1", "localhost", 1, True),
        ("[::1]:9449", "::1", 9449, True),
        (":9449", "0.0.0.0", 9449, False),
        ("10.0.0.1:80", "10.0.0.1", 80, False),
        ("gpu7:80", "gpu7", 80, False),
    ],
)
def test_addresses(text: str, host: str, port: int, loopback: bool) -> None:
    address = exporter.parse_address(text)
    assert (address.host, address.port, address.loopback) == (host, port, loopback)


def test_the_page_names_the_metrics_that_are_not_of_counters(cluster: Cluster) -> None:
    text = run("metrics", "--once").stdout
    exported = set(re.findall(r"^# TYPE rdma_transport_(\S+)", text, re.MULTILINE))
    of_counters = {counter.metric for counter in (*counters.PROCESS, *counters.PEER)}
    others = pages.text_of(OBSERVE).partition("The others are")[2].partition(". ")[0]
    assert set(re.findall(r"`(\w+)`", others)) == exported - of_counters
