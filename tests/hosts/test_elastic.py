"""Elastic jobs of several hosts, which are lost, cut off, and join."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deadlines import eventually
from tests.support.launchers import Launcher, Launchers, launchers, member
from tests.support.namespaces import COMMAND_SECONDS, Hosts

pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Launchers]:
    with launchers(tmp_path) as made:
        yield made


def start(
    hosts: Hosts, jobs: Launchers, node: int, *options: str, steps: int = 30, ranks: int = 4
) -> Launcher:
    """Start the launcher of a host, with two ranks."""
    meet = ("--master-addr", hosts.first.host, "--master-port", jobs.port)
    words = ("-n", "2", "--nnodes", "2", "--node-rank", str(node), *meet, *options)
    return jobs.start(*words, program=member(steps, ranks), call=hosts.both[node].call)


def test_a_host_is_lost_and_comes_back(hosts: Hosts, jobs: Launchers) -> None:
    first, second = (start(hosts, jobs, node) for node in (0, 1))
    second.await_text("step 10 ")
    second.kill()
    first.await_text(r"begins 0/2 after \d+")
    third = start(hosts, jobs, 1)
    assert [first.end(), third.end()] == [0, 0]
    assert jobs.check_bits() >= 30
    lost = f"host {hosts.second.host} is lost, with ranks 2 and 3; the others go on\n"
    assert lost in first.errors
    assert "\n2 ranks go on\n" in first.errors
    assert first.errors.endswith("\n4 ranks go on\n")
    # The new ranks begin with the state of the others.
    assert re.search(r"^\[[23]\] begins [23]/[34] after [1-9]\d", third.printed, re.M)


def test_of_a_network_that_falls_apart_one_half_goes_on(hosts: Hosts, jobs: Launchers) -> None:
    first, second = (start(hosts, jobs, node, ranks=2) for node in (0, 1))
    second.await_text("step 10 ")
    hosts.second.link(up=False)
    try:
        assert second.end() == 1
        assert first.end() == 0
    finally:
        hosts.second.link(up=True)
        assert all(eventually(host.running, COMMAND_SECONDS) for host in hosts.both)
    why = "has ended or cannot be reached any more, and it decides which ranks go on; ended all"
    assert f"error: the launcher at {hosts.first.host}:{jobs.port} {why}" in second.errors
    assert max(second.steps()) < 30 <= max(first.steps())
    assert re.findall(r"begins \d/(\d)", second.printed) == ["4", "4"]
    assert jobs.check_bits() >= 30


def test_the_job_ends_with_the_launcher_that_decides(hosts: Hosts, jobs: Launchers) -> None:
    first, second = (start(hosts, jobs, node, steps=10**6) for node in (0, 1))
    second.await_text("step 10 ")
    first.kill()
    assert second.end() == 1
    assert "decides which ranks go on; ended all ranks of this host\n" in second.errors
    assert set(re.findall(r"begins \d/(\d)", second.printed)) == {"4"}


def test_hosts_that_a_command_lists(hosts: Hosts, jobs: Launchers, tmp_path: Path) -> None:
    """One joins, and the first one leaves: the state passes to the other."""
    for each in hosts.both:
        os.symlink(each.network, tmp_path / each.host)
    listed = tmp_path / "listed"
    listed.write_text(f"{hosts.first.host}:2\n")
    options = ("--host-discovery-script", f"cat {listed}", "--master-addr", hosts.first.host)
    options += ("--launch-with", f"nsenter --net={tmp_path}/{{host}} sh -c")
    options += ("--master-port", jobs.port, "--min", "1", "--max", "4")
    job = jobs.start(*options, program=member(30, 1), call=hosts.first.call)
    job.await_text(r"begins 1/2 after 0")
    listed.write_text(f"{hosts.first.host}:2\n{hosts.second.host} slots=1\n")
    job.await_text(r"begins 2/3 after \d+")
    listed.write_text(f"{hosts.second.host}\n")
    assert job.end() == 0
    assert jobs.check_bits() >= 10
    assert re.search(rf"begins 0/1 after [1-9]\d* at {hosts.second.host}$", job.printed, re.M)
    assert f"host {hosts.first.host} has left\n1 rank goes on\n" in job.errors
