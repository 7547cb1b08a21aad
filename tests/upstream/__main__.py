"""Runs TensorFlow's own tests over gRPC and over rdma, and compares what becomes of each.

They are not in TensorFlow's wheel: name a checkout's folder tensorflow/python, of the version that
is installed, by --tests or the environment's TENSORFLOW_TESTS.

usage: python -m tests.upstream [--tests DIR] [--protocol rdma] [--json FILE] [NAMES...]
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.upstream.runner import Result, run_file

PROTOCOLS = ("grpc", "rdma")
FILES = (
    "training/server_lib_test.py",
    "client/session_clusterspec_prop_test.py",
    "eager/remote_test.py",
    "eager/remote_cluster_test.py",
    "eager/remote_execution_test.py",
    "kernel_tests/collective_ops_multi_worker_test.py",
    "distribute/cross_device_ops_test.py",
    "distribute/collective_all_reduce_strategy_test.py",
    "distribute/strategy_gather_test.py",
    "distribute/multi_worker_continuous_run_test.py",
    "distribute/parameter_server_strategy_test.py",
    "distribute/parameter_server_strategy_v2_test.py",
    "distribute/distributed_table_test.py",
    "distribute/coordinator/cluster_coordinator_test.py",
    "distribute/coordinator/get_task_states_test.py",
    "distribute/coordinator/fault_tolerance_test.py",
    "distribute/coordinator/fault_tolerance_coordination_service_test.py",
    "distribute/integration_test/mwms_peer_failure_test.py",
)
HEADINGS = ("file", "protocol", "passed", "skipped", "failed", "s", "by fabric", "by gRPC: why")


def main(
    tests: Annotated[
        Path,
        typer.Option(envvar="TENSORFLOW_TESTS", exists=True, help="a checkout's tensorflow/python"),
    ],
    names: Annotated[list[str] | None, typer.Argument(help="parts of the files' names")] = None,
    protocol: Annotated[list[str], typer.Option(help="over these")] = [*PROTOCOLS],  # noqa: B006
    patience: Annotated[float, typer.Option(help="seconds that a test may take")] = 120,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all outcomes")] = None,
    logs: Annotated[Path, typer.Option(help="for what the tests print")] = Path("results/upstream"),
) -> None:
    """Exit with 1 where a test failed under rdma that passed under gRPC."""
    logs.mkdir(parents=True, exist_ok=True)
    console = Console()
    overview, failed = Table(*HEADINGS), Table("test that failed", *protocol)
    report: dict[str, dict[str, Result]] = {}
    alone = 0
    for file in FILES:
        if not (tests / file).is_file() or not any(name in file for name in names or [""]):
            continue
        over = report[file] = {}
        for each in protocol:
            log = logs / f"{Path(file).stem}.{each}.log"
            log.unlink(missing_ok=True)
            result = over[each] = run_file(tests / file, each, patience, log)
            console.print(f"{file} over {each}: {result.counts()}")
            overview.add_row(file, each, *result.row())
        for test in sorted({test for result in over.values() for test in result.outcomes}):
            failures = {each: result.failure(test) for each, result in over.items()}
            if any(failures.values()):
                failed.add_row(test, *failures.values())
                alone += bool(failures.get("rdma")) and not failures.get("grpc", "unknown")
        if json_file is not None:
            plain = {f: {p: asdict(r) for p, r in each.items()} for f, each in report.items()}
            json_file.write_text(json.dumps(plain, indent=2))
    if not report:
        raise typer.BadParameter(f"none of the files is in {tests}")
    console.print(overview, failed, f"{alone} failed under rdma only", sep="\n")
    if alone:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
