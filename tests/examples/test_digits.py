"""The table of the example that `make run` runs."""

import io

from rich.console import Console

from examples.digits import Result, report


def test_a_communication_below_the_noise_is_no_negative_number() -> None:
    sent = dict.fromkeys(("static", "dynamic", "inline", "grpc"), 0)
    results = {
        name: Result([0.5], 0.9, step_seconds=0.010, compute_seconds=compute, sent=sent)
        for name, compute in (("grpc", 0.004), ("rdma", 0.012))
    }
    console = Console(file=io.StringIO(), width=100, record=True)
    assert report(results, console)
    (line,) = [line for line in console.export_text().splitlines() if "communication" in line]
    assert line.split("│")[2:4] == ["         6.0 ", " below noise "]
