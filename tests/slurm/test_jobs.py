"""Jobs of TensorFlow as the documentation has them: the bits of gRPC, cancelled, and requeued."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Slurm
from tests.support.command import ROOT
from tests.support.deadlines import eventually

pytestmark = pytest.mark.timeout(480, func_only=True)
EXAMPLES = ROOT / "examples" / "slurm"
JOB_SECONDS = 150  # for a job to start and end on a busy machine
MIRRORED_STEPS = 1200
NO_SHARED_MEMORY = "no fabric reaches it (shm: it is in another network namespace of this host"
ON_TWO_NODES = ("--nodes=2", "--ntasks=3", "--distribution=block")


def section() -> str:
    text = (ROOT / "docs" / "running.md").read_text()
    return text.partition("\n## Slurm\n")[2].partition("\n## ")[0]


def code(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a user has copied: the script of the job, and an example as its train.py."""
    shutil.copy(EXAMPLES / "job.sh", tmp_path)
    shutil.copy(EXAMPLES / "mirrored.py", tmp_path / "train.py")
    shutil.copy(EXAMPLES / "parameter_server.py", tmp_path)
    return tmp_path


def losses(text: str) -> dict[str, str]:
    """The last loss of each step."""
    return dict(re.findall(r"step (\d+) loss (\S+)$", text, re.MULTILINE))


def transports(text: str) -> set[str]:
    return set(re.findall(r"rdma: peer \S+ transport=(\w+)", text))


def succeed(slurm: Slurm, folder: Path, *words: object, **settings: str) -> tuple[str, str]:
    """The output and the log of a step that ends well."""
    ran = slurm.run(
        "srun",
        "--kill-on-bad-exit=1",
        *words,
        folder=folder,
        settings=settings,
        seconds=JOB_SECONDS,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr[-6000:]
    return ran.stdout, ran.stderr


def sockets(slurm: Slurm) -> dict[str, list[str]]:
    """The names of local sockets, and the ports that are listened at, on each compute node."""
    script = (
        "awk '$8 ~ /rdma/ {print $8}' /proc/net/unix; awk '$4 == \"0A\" {print $2}' /proc/net/tcp"
    )
    return {
        node.name: sorted(node.run("sh", "-c", script).stdout.split()) for node in slurm.compute
    }


def test_the_examples_have_the_code_of_the_documentation() -> None:
    assert code("bash") == [(EXAMPLES / "job.sh").read_text()]
    programs = [path.read_text() for path in EXAMPLES.glob("*.py")]
    parts = code("python")
    assert len(parts) == 2
    for part in parts:
        text = part.replace('rpc_layer="rdma"', "rpc_layer=options.protocol")
        text = text.replace("auto_set_gpu=False)\n", "auto_set_gpu=False)  # fmt: skip\n")
        assert any(text in program for program in programs), part


def test_a_job_whose_node_is_taken_away_starts_again_and_has_the_losses_of_grpc(
    slurm: Slurm, folder: Path
) -> None:
    steps = ("--steps", MIRRORED_STEPS)
    words = ("--nodes=4", "--ntasks-per-node=1", "python", "train.py", *steps)
    expected, _ = succeed(slurm, folder, *words, "--protocol", "grpc")
    shutil.rmtree(folder / "checkpoints")

    ring = {"RDMA_TRANSPORT_COLLECTIVES": "ring"}  # four workers sum in gRPC's order
    number = slurm.submit("job.sh", *steps, folder=folder, settings=ring)
    assert eventually(lambda: "step 50 loss" in slurm.output(number), JOB_SECONDS), (
        slurm.output(number)[-6000:] + slurm.logs()
    )
    slurm.run("scontrol", "update", "nodename=n4", "state=down", "reason=test")
    slurm.wait(number, 60, ("PENDING",))
    assert slurm.states()["n4"].startswith("down")
    # Slurm does not wait for what still runs on a node that is down.
    assert eventually(lambda: not any(slurm.processes().values()), JOB_SECONDS), slurm.processes()
    slurm.run("scontrol", "update", "nodename=n4", "state=resume")
    # Slurm itself would let some time pass.
    slurm.run("scontrol", "update", f"jobid={number}", "starttime=now")
    slurm.wait(number, JOB_SECONDS)

    text = slurm.output(number)
    starts = [int(step) for step in re.findall(r"starting at step (\d+)", text)]
    assert sorted(starts)[:4] == [0] * 4
    assert len(starts) == 8
    assert min(starts[4:]) == max(starts[4:]) >= 50
    assert losses(text) == losses(expected)
    assert len(losses(text)) == MIRRORED_STEPS // 50
    assert transports(text) == {"libfabric"}
    assert text.count("PASS  libfabric_transfer") == 8


def test_a_parameter_server_and_workers_have_the_losses_of_grpc(slurm: Slurm, folder: Path) -> None:
    words = (*ON_TWO_NODES, "python", "parameter_server.py")
    expected, _ = succeed(slurm, folder, *words, "--protocol", "grpc")
    found, log = succeed(slurm, folder, *words, RDMA_TRANSPORT_FALLBACK="forbid")
    assert losses(found) == losses(expected)
    assert len(losses(found)) == 20
    assert transports(log) == {"shm", "libfabric"}  # the first worker is on the server's node


def status(slurm: Slurm, number: str, node: str) -> dict[str, dict[str, Any]]:
    """What the tasks of a job on a node report, by their names."""
    words = ("--overlap", f"--jobid={number}", f"--nodelist={node}", "--nodes=1", "--ntasks=1")
    ran = slurm.run("srun", *words, "rdma-transport", "status", "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = {process["tasks"][0]: process for process in json.loads(ran.stdout)["processes"]}
    for task, process in found.items():  # for when the test fails
        print(task, process["fallback_reasons"], process["errors"], *process["peers"], sep="\n")
    return found


def assert_refused(server: dict[str, Any], peer: str) -> None:
    """The server reports that tensors for this peer fall back to gRPC, and why."""
    (found,) = [each for each in server["peers"] if each["task"] == peer]
    assert found["transport"] == "grpc"
    assert NO_SHARED_MEMORY in found["reason"]
    assert found["sent"]["grpc"]["tensors"] > 0
    assert any(NO_SHARED_MEMORY in reason for reason in server["fallback_reasons"])


def test_nodes_do_not_share_memory_and_a_cancelled_job_leaves_nothing(
    slurm: Slurm, folder: Path
) -> None:
    before = sockets(slurm), sorted(Path("/dev/shm").iterdir())
    job = folder / "shm.sh"
    job.write_text("#!/bin/bash\nsrun python parameter_server.py --steps 1000000\n")
    settings = {"RDMA_TRANSPORT_FABRIC": "shm"}
    number = slurm.submit(*ON_TWO_NODES, job, folder=folder, settings=settings)
    assert eventually(lambda: "step 20 loss" in slurm.output(number), JOB_SECONDS), (
        slurm.output(number)[-6000:] + slurm.logs()
    )
    first, second = status(slurm, number, "n1"), status(slurm, number, "n2")
    server, worker = first["/job:ps/task:0"], second["/job:worker/task:1"]
    assert_refused(server, "/job:worker/task:1")
    assert_refused(worker, "/job:ps/task:0")
    (near,) = [each for each in server["peers"] if each["task"] == "/job:worker/task:0"]
    assert (near["transport"], near["reason"]) == ("shm", "same host")
    assert near["sent"]["grpc"]["tensors"] == 0
    assert slurm.processes()["n2"]
    assert sockets(slurm) != before[0]

    slurm.run("scancel", number)
    slurm.wait(number, 60, ("CANCELLED",))
    assert eventually(lambda: not any(slurm.processes().values()), 30), slurm.processes()
    assert (sockets(slurm), sorted(Path("/dev/shm").iterdir())) == before
