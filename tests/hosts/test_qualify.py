"""The command ``rdma-transport qualify`` between two hosts, over libfabric and TCP."""

import pytest

from bench.support.namespaces import INTERFACE
from tests.support.namespaces import Hosts
from tests.support.qualifying import qualified

pytestmark = pytest.mark.timeout(240)
NO_CARDS = {"RDMA_TRANSPORT_LIBIBVERBS": "/nowhere/libibverbs.so.1"}


def test_hosts_that_tcp_connects_pass(hosts: Hosts) -> None:
    calls = [host.call for host in hosts.both]
    code, claims, document = qualified(
        settings=NO_CARDS, seconds=200, host=hosts.first.host, places=calls
    )
    assert code == 0, claims
    assert claims["route"]["found"].startswith("libfabric, ")
    assert claims["training"]["status"] == "PASS"
    assert claims["link"]["status"] == "SKIP"
    assert document["figures"]["order"]["notes"] > 100


def test_a_link_that_goes_down_ends_the_channel_and_a_new_one_works(hosts: Hosts) -> None:
    calls = [host.call for host in hosts.both]
    code, claims, _ = qualified(
        "--no-training",
        "--link-down",
        INTERFACE,
        settings=NO_CARDS,
        seconds=200,
        host=hosts.first.host,
        places=calls,
    )
    assert code == 0, claims
    assert claims["link"]["status"] == "PASS"
