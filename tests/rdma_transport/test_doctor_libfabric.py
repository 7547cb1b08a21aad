"""`rdma-transport doctor` and `info`: what they find out about libfabric, and what fixes it."""

import re

import pytest

from rdma_transport.doctor import libfabric, verbs
from rdma_transport.doctor.context import Context
from rdma_transport.doctor.result import FAIL, PASS, SKIP, WARN
from rdma_transport.settings import read
from tests.rdma_transport.test_doctor_peer import ask, task
from tests.support.command import NO_LIBRARIES, checks, run, valid
from tests.support.faulty_libfabric import environment

pytestmark = pytest.mark.timeout(90)
FAMILY = {f"libfabric_{name}" for name in ("library", "provider", "endpoint", "ports", "transfer")}


def doctor(*arguments: object, settings: dict[str, str]) -> tuple[int, dict[str, dict]]:
    ran = run("doctor", "--quick", "--json", *arguments, settings=settings)
    assert ran.stderr == ""
    return ran.returncode, checks(ran)


def family(found: dict[str, dict]) -> set[str]:
    return {name for name in found if name.startswith("libfabric")}


def port_variables() -> tuple[str, str]:
    """The names that this host's libfabric has for the range of ports."""
    ran = run("info", "--no-fabrics", "--json", settings=environment())
    used = next(each for each in valid(ran.stdout, "info")["libfabric"]["offers"] if each["chosen"])
    ports = libfabric.port_range(used["full_name"])
    return ports.low_name, ports.high_name


def test_without_the_library_there_is_one_line_more() -> None:
    code, found = doctor(settings=NO_LIBRARIES)
    assert (code, family(found)) == (0, {"libfabric_library"})
    check = found["libfabric_library"]
    assert check["status"] == SKIP
    assert check["found"].startswith("cannot load libfabric: /nowhere/libfabric.so.1")
    assert "apt-get install libfabric1" in check["fix"]["shell"]
    assert "/opt/amazon/efa/lib" in check["fix"]["shell"]


def test_without_the_library_that_is_required() -> None:
    code, found = doctor("--fabric", "libfabric", settings=NO_LIBRARIES)
    assert (code, family(found)) == (3, FAMILY)
    assert found["libfabric_library"]["status"] == FAIL
    assert found["libfabric_transfer"]["status"] == SKIP


@pytest.mark.parametrize("fabric", ["auto", "libfabric"])
def test_it_is_tried(fabric: str) -> None:
    code, found = doctor(settings=environment(fabric, LIBFABRIC_INTERFACE=""))
    assert (code, family(found)) == (0, FAMILY)
    assert {found[name]["status"] for name in FAMILY} == {PASS}
    assert re.match(r"1\.\d+, /", found["libfabric_library"]["found"])
    assert re.search(
        r" on \w+ \([\da-f.:]+\): it is the inter", found["libfabric_provider"]["found"]
    )
    assert re.search(r"by tcp on \w+ \(.*:\d+\)", found["libfabric_endpoint"]["found"])
    assert "1 MiB written in" in found["libfabric_transfer"]["found"]
    assert "verified: libfabric, " in found["libfabric_transfer"]["found"]


@pytest.mark.parametrize(
    ("faulty", "settings", "check", "status", "sentence", "line"),
    [
        ("version=1.13", {}, "library", FAIL, "is too old: it is version 1.13", "libfabric1"),
        ("no_provider=1", {}, "provider", FAIL, "offers no provider", "fi_info"),
        (
            *("", {"LIBFABRIC_INTERFACE": "nowhere0"}, "provider", FAIL),
            *("RDMA_TRANSPORT_LIBFABRIC_INTERFACE=nowhere0 allows no provider", "INTERFACE=e"),
        ),
        (
            *("", {"LIBFABRIC_PROVIDER": "efa"}, "provider", FAIL),
            *("RDMA_TRANSPORT_LIBFABRIC_PROVIDER=efa and", "LIBFABRIC_PROVIDER=tcp"),
        ),
        ("", {}, "provider", WARN, "names it", "RDMA_TRANSPORT_LIBFABRIC_INTERFACE=eth0"),
        ("mr_fail=1", {}, "endpoint", FAIL, "Cannot allocate memory", "fi_info -p"),
        ("lose=100", {"CONNECT_TIMEOUT": "1s"}, "transfer", FAIL, "", "fi_pingpong -p"),
    ],
)  # fmt: skip
def test_faults(
    faulty: str, settings: dict[str, str], check: str, status: str, sentence: str, line: str
) -> None:
    code, found = doctor(settings=environment(faulty=faulty, **settings))
    one = found[f"libfabric_{check}"]
    assert one["status"] == status
    assert sentence in one["found"]
    assert any(line in fix for fix in one["fix"].values()), one
    assert code == (1 if status == FAIL else 0)


def test_what_nobody_requested_is_no_fault() -> None:
    for settings in ({"faulty": "version=1.13"}, {"faulty": "no_provider=1"}):
        code, found = doctor(settings=environment("auto", **settings, LIBFABRIC_INTERFACE=""))
        assert code == 0, found
        assert {found[name]["status"] for name in family(found)} <= {PASS, SKIP}
    without_tcp = environment("auto", LIBFABRIC_INTERFACE="", LIBFABRIC_PROVIDER="^tcp")
    code, found = doctor(settings=without_tcp)
    assert (code, found["libfabric_provider"]["status"]) == (0, SKIP)


def test_an_interface_that_the_user_names_and_the_host_lacks_is_a_fault() -> None:
    code, found = doctor(settings=environment("auto", LIBFABRIC_INTERFACE="nowhere0"))
    assert (code, found["libfabric_provider"]["status"]) == (1, FAIL)
    assert "tcp on lo" in found["libfabric_provider"]["found"]


def test_a_malformed_list_of_providers() -> None:
    code, found = doctor(settings=environment("auto", LIBFABRIC_PROVIDER="^^tcp"))
    assert (code, found["settings"]["status"]) == (1, FAIL)
    assert "RDMA_TRANSPORT_LIBFABRIC_PROVIDER='^^tcp'" in found["settings"]["found"]
    assert found["libfabric_provider"]["status"] == SKIP


def test_a_card_and_tcp() -> None:
    code, found = doctor(settings=environment("auto", "provider=efa+tcp", LIBFABRIC_INTERFACE=""))
    assert code == 0
    assert re.match(r"efa on .*: it is a card's; tcp on", found["libfabric_provider"]["found"])
    assert re.match(
        "libfabric by efa on .*; libfabric by tcp", found["libfabric_endpoint"]["found"]
    )
    # The card comes first.
    assert "libfabric, efa " in found["libfabric_transfer"]["found"]


@pytest.mark.parametrize(("card", "status"), [(True, SKIP), (False, FAIL)])
def test_a_card_that_only_libfabric_can_use_is_no_fault_of_verbs(card: bool, status: str) -> None:
    context = Context(environment=read())
    reason = "it uses EFA, which does not support reliable connections (RC)"
    port = {"name": "efa_0:1", "active": False, "chosen": False, "reason": reason}
    offer = {"provider": "efa", "interface": "efa_0", "card": card, "chosen": True}
    context.__dict__["survey"] = {"ports": [port], "left_out": []}
    context.__dict__["libfabric"] = {"offers": [offer], "error": ""}
    result = verbs.check_port(context)
    assert (result.status, reason in result.found) == (status, True)
    assert "use libfabric (efa)" in result.why


def test_the_range_of_ports() -> None:
    low, high = port_variables()
    code, found = doctor(settings=environment() | {low: "43210", high: "43219"})
    assert (code, found["libfabric_ports"]["status"]) == (0, PASS)
    assert "43210 to 43219" in found["libfabric_ports"]["found"]
    assert "enough for 10 tasks" in found["libfabric_ports"]["found"]
    assert re.search(r"127\.0\.0\.1:4321\d\)", found["libfabric_endpoint"]["found"])
    assert len(re.findall(r"127\.0\.0\.1:4321\d", found["libfabric_transfer"]["found"])) == 2


def test_a_range_of_ports_without_effect() -> None:
    low, high = port_variables()
    for given in ({low: "43210"}, {high: "43210"}, {low: "5", high: "4"}, {low: "x", high: "4"}):
        _, found = doctor(settings=environment() | given)
        assert found["libfabric_ports"]["status"] == WARN, given
        assert f"{low}=40000" in found["libfabric_ports"]["fix"]["shell"]
    other = low.replace("_NET_", "_TCP_") if "_NET_" in low else low.replace("_TCP_", "_NET_")
    _, found = doctor(settings=environment() | {other: "43210"})
    assert found["libfabric_ports"]["status"] == WARN
    assert f"{other} is set, but this version" in found["libfabric_ports"]["found"]


def test_a_range_without_a_free_port() -> None:
    low, high = port_variables()
    with task("rdma", environment() | {low: "43230", high: "43230"}):
        code, found = doctor(settings=environment() | {low: "43230", high: "43230"})
    assert (code, found["libfabric_endpoint"]["status"]) == (1, FAIL)
    assert "no port is free" in found["libfabric_endpoint"]["why"]


def test_a_task_with_another_provider() -> None:
    with task("rdma", environment(faulty="provider=efa+tcp")) as (_, place):
        code, found = ask(place, settings=environment())
        assert code == 0, found
        assert found["peer_transport"]["found"].startswith("libfabric, ")
    with task("rdma", environment(faulty="provider=efa")) as (_, place):
        code, found = ask(place, settings=environment())
        reason = found["peer_transport"]["found"]
    assert "no fabric reaches it (libfabric/efa: the peer does not have it)" in reason  # it says so


def test_an_endpoint_that_does_not_answer_is_told_with_its_route() -> None:
    with task("rdma", environment(faulty="lose=100")) as (_, place):
        code, found = ask(place, "--wait", "2", settings=environment())
    check = found["peer_transport"]
    assert (code, check["status"]) == (0, WARN)
    assert re.search(r"\(libfabric, .*127\.0\.0\.1:\d+ -> 127\.0\.0\.1:\d+\)", check["found"])
    assert "firewall-cmd --add-port" in check["fix"]["shell"]


def test_info() -> None:
    settings = environment("auto", "provider=efa+tcp", LIBFABRIC_INTERFACE="")
    ran = run("info", "--json", settings=settings)
    assert (ran.returncode, ran.stderr) == (0, "")
    found = valid(ran.stdout, "info")
    assert re.match(r"1\.\d+ \(/", found["versions"]["libfabric"])
    used = [each for each in found["libfabric"]["offers"] if each["chosen"]]
    assert [(each["provider"], each["card"]) for each in used] == [("efa", True), ("tcp", False)]
    assert all(each["reason"] for each in found["libfabric"]["offers"])
    about = {fabric["name"]: fabric["about"] for fabric in found["fabrics"]}["libfabric"]
    assert re.match(r"libfabric by efa on .*; libfabric by tcp on .*:\d+\)$", about)
    shown = run("info", settings=settings).stdout
    assert re.search(r"^libfabric efa on .*: used by tasks: it is a card's$", shown, re.MULTILINE)
    assert re.search(r"^libfabric tcp on .*: used by tasks: ", shown, re.MULTILINE)
