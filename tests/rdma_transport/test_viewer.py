"""`rdma-transport status` in a terminal: what a person sees and can do."""

import asyncio
import copy
import os
from collections.abc import Awaitable, Callable, Iterator

import pytest
from rich.console import Console
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from bench.support.cluster import Cluster
from rdma_transport import live
from rdma_transport.observe import samples, viewer
from tests.support.observing import MAIN, Terminal, job

pytestmark = pytest.mark.timeout(60)
PEERS = 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster({"a": 1, "b": 1}) as made:
        yield made


@pytest.fixture(scope="module")
def sample(cluster: Cluster) -> samples.Sample:
    """A real one, in which task a has 40 peers; the peer b:N has sent N GiB."""
    pid = cluster["a", 0].pid
    with job(cluster):
        taken = samples.take([live.LiveServer(pid, os.geteuid())])
    (peer,) = taken.answers[pid]["peers"]
    peers = [copy.deepcopy(peer) for _ in range(PEERS)]
    for number, one in enumerate(peers):
        one["task"] = f"/job:b/replica:0/task:{number}"
        one["sent"]["static"]["bytes"] = number << 30
    taken.answers[pid]["peers"] = peers
    return taken


Play = Callable[[viewer.Viewer, Pilot[str]], Awaitable[None]]


def played(taken: list[samples.Sample | None], play: Play) -> viewer.Viewer:
    """Do it in a terminal of 80x24. Each refresh takes the next sample; the last one stays."""
    left = list(taken)
    app = viewer.Viewer(lambda: left.pop(0) if len(left) > 1 else left[0], interval=3600)

    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await refreshed(app, pilot)
            await play(app, pilot)

    asyncio.run(run())
    return app


async def refreshed(app: viewer.Viewer, pilot: Pilot[str]) -> None:
    await app.workers.wait_for_complete()
    await pilot.pause()


def column(app: viewer.Viewer, name: str) -> list[str]:
    """The texts of a column, from the first row to the last."""
    table = app.query_one(DataTable)
    return [str(cell) for cell in table.get_column(name)]


def text(app: viewer.Viewer, name: str) -> str:
    console = Console(width=78)
    with console.capture() as capture:
        console.print(app.query_one(name, Static).content)
    return capture.get()


def test_all_peers_can_be_reached_in_80x24(sample: samples.Sample) -> None:
    async def play(app: viewer.Viewer, pilot: Pilot[str]) -> None:
        table = app.query_one(DataTable)
        assert table.row_count == PEERS
        assert 5 < table.size.height < 20
        assert table.size.width == 80
        assert table.scroll_offset.y == 0
        await pilot.press("ctrl+end")
        await pilot.pause()
        assert table.scroll_offset.y > 0
        assert table.cursor_row == PEERS - 1
        await pilot.press("right")
        await pilot.pause()
        assert table.scroll_offset.x > 0
        assert "registered" in text(app, "#facts")

    played([sample], play)


def test_rows_are_sorted_by_numbers_and_reversed(sample: samples.Sample) -> None:
    async def play(app: viewer.Viewer, pilot: Pilot[str]) -> None:
        while "▲" not in str(app.query_one(DataTable).columns[">sent"].label):  # type: ignore[index]
            await pilot.press(">")
        assert column(app, "peer") == [f"b:{number}" for number in range(PEERS)]
        await pilot.press("r")
        assert column(app, "peer") == [f"b:{number}" for number in reversed(range(PEERS))]
        await pilot.press("<")
        assert "▼" in str(app.query_one(DataTable).columns[">ring"].label)  # type: ignore[index]

    played([sample], play)


def test_a_filter_keeps_rows_with_all_its_words(sample: samples.Sample) -> None:
    async def play(app: viewer.Viewer, pilot: Pilot[str]) -> None:
        await pilot.press("/", *"b:1 SHM")
        await pilot.pause()
        assert set(column(app, "peer")) == {"b:1", *(f"b:{number}" for number in range(10, 20))}
        assert "filter: b:1 SHM" in text(app, "#title")
        await pilot.press("enter", "q")  # a q in the filter is a letter

    async def all_again(app: viewer.Viewer, pilot: Pilot[str]) -> None:
        await pilot.press("/", *"nobody")
        await pilot.pause()
        assert app.query_one(DataTable).row_count == 0
        await pilot.press("escape")
        await pilot.pause()
        assert app.query_one(DataTable).row_count == PEERS
        assert not app.query_one(Input).display

    assert played([sample], play).return_value == viewer.QUIT
    played([sample], all_again)


def test_edges_are_listed_and_filtered(sample: samples.Sample) -> None:
    async def play(app: viewer.Viewer, pilot: Pilot[str]) -> None:
        await pilot.press("e")
        await pilot.pause()
        (wide,) = [edge for edge in column(app, "edge") if "wide" in edge]
        assert column(app, ">bytes")[column(app, "edge").index(wide)] == "64.00 KiB"
        await pilot.press("/", *"wide b:0 static", "enter")
        await pilot.pause()
        assert column(app, "edge") == [wide]
        await pilot.press("escape", "e")
        await pilot.pause()
        assert app.query_one(DataTable).row_count == PEERS

    played([sample], play)


def test_a_refresh_keeps_the_cursor_on_its_row(sample: samples.Sample) -> None:
    later = copy.deepcopy(sample)
    (stats,) = later.answers.values()
    del stats["peers"][:3]
    stats["peers"].reverse()

    async def play(app: viewer.Viewer, pilot: Pilot[str]) -> None:
        while "▲" not in str(app.query_one(DataTable).columns[">sent"].label):  # type: ignore[index]
            await pilot.press(">")
        await pilot.press(*["down"] * 6)
        app.take_sample()
        await refreshed(app, pilot)
        table = app.query_one(DataTable)
        assert column(app, "peer") == [f"b:{number}" for number in range(3, PEERS)]
        assert column(app, "peer")[table.cursor_row] == "b:6"

    played([sample, later], play)


def test_it_ends_when_there_is_nothing_to_show(sample: samples.Sample) -> None:
    async def play(app: viewer.Viewer, pilot: Pilot[str]) -> None:
        app.take_sample()
        while app.return_value is None:
            await pilot.pause()

    app = played([sample, None], play)
    assert app.return_value == viewer.ENDED
    assert app.document is not None


def test_without_colors(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with job(cluster), Terminal(["status", cluster["a", 0].pid], columns=80, lines=24) as terminal:
        screen = terminal.wait_for("Filter")
        assert "b:0    shm" in screen
        terminal.press("q")
        assert terminal.end() == 0


WITHOUT = "import sys; sys.modules['textual'] = None; " + MAIN


def test_without_textual_it_prints_once(cluster: Cluster) -> None:
    words = ["status", cluster["a", 0].pid, "--interval", "0"]
    with Terminal(words, columns=80, program=WITHOUT) as terminal:
        assert terminal.end() == 0
        screen = terminal.screen()
    assert "note: the interactive view requires: pip install textual" in screen
    assert f"(process {cluster['a', 0].pid})" in screen


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_text(cluster: Cluster) -> None:
    with Terminal(["status", cluster["a", 0].pid], terminal="dumb") as terminal:
        assert terminal.end() == 0
        assert f"(process {cluster['a', 0].pid})" in terminal.screen()
