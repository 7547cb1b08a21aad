"""Plots name sizes as people do, and their legends hide no data."""

from pathlib import Path

from matplotlib.figure import Figure

from bench.paper import pictures
from bench.plot import by_bytes
from bench.report import Row, Times


def test_an_axis_of_sizes_names_them() -> None:
    axes = Figure().add_subplot()
    by_bytes(axes, [4, 64, 1024, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 3 << 29])
    assert [text.get_text() for text in axes.get_xticklabels()] == [
        *("4 B", "1 KiB", "256 KiB", "4 MiB"),
    ]


def test_a_legend_is_beside_the_data(tmp_path: Path) -> None:
    rows = [Row("2", "gru", 1, way, 6, Times(us)) for way, us in (("grpc", 2e3), ("rdma", 1e3))]
    pictures.draw("models", rows, tmp_path / "models.svg")
    text = (tmp_path / "models.svg").read_text()
    inside = text.partition('<g id="axes_1">')[2].partition('<g id="legend_1">')[0]
    assert inside.count("</g>") == inside.count("<g ") + inside.count("<g>") + 1  # the axes ended
