"""`rdma-transport config`: every setting, where its value is from, and what is wrong."""

import pytest

import rdma_transport
from tests.support.command import run, valid

pytestmark = pytest.mark.timeout(60)


def test_shows_every_setting() -> None:
    ran = run("config", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    shown = valid(ran.stdout, "config")
    assert [row["name"] for row in shown["settings"]] == [
        setting.name for setting in rdma_transport.settings()
    ]
    table = run("config").stdout
    assert all(row["name"] in table for row in shown["settings"])


def test_tells_what_the_environment_sets() -> None:
    ran = run("config", "--changed", "--json", settings={"RDMA_TRANSPORT_SPIN": "7us"})
    (row,) = valid(ran.stdout, "config")["settings"]
    assert (row["name"], row["source"]) == ("RDMA_TRANSPORT_SPIN", "environment")
    assert (row["value"], row["default"]) == ("7us", "200us")
    one = run("config", "spin", settings={"RDMA_TRANSPORT_SPIN": "7us"}).stdout
    assert one.startswith(
        "RDMA_TRANSPORT_SPIN = 7us  (environment; duration; default 200us)\n    how"
    )
    plain = run("config", "RDMA_TRANSPORT_SPIN").stdout
    assert plain.startswith("RDMA_TRANSPORT_SPIN = 200us  (default; duration)\n    how")


@pytest.mark.parametrize(
    ("settings", "arguments", "sentence"),
    [
        ({"RDMA_TRANSPORT_ARENA_SIZE": "lots"}, [], "RDMA_TRANSPORT_ARENA_SIZE: 'lots' is not"),
        ({"RDMA_TRANSPORT_FABRICK": "shm"}, [], "did you mean RDMA_TRANSPORT_FABRIC?"),
        ({}, ["SPIM"], "did you mean RDMA_TRANSPORT_SPIN?"),
    ],
)
def test_ends_with_2_where_something_is_wrong(
    settings: dict[str, str], arguments: list[str], sentence: str
) -> None:
    ran = run("config", *arguments, settings=settings)
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: ")
    assert sentence in ran.stderr
    if not arguments:
        assert "RDMA_TRANSPORT_SPIN" in ran.stdout
        document = valid(run("config", "--json", settings=settings).stdout, "config")
        assert sentence in document["error"] + "".join(document["warnings"])
