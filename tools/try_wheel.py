"""Try the installed package without TensorFlow: every module for NumPy, and every command.

usage: python tools/try_wheel.py    (by the Python that has the package, from any folder without it)
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent import futures
from pathlib import Path

HERE = Path(sys.executable).parent
SUM = """
import numpy as np
from rdma_transport.collectives import Communicator
with Communicator.connect() as ranks:
    assert ranks.all_reduce(np.ones(1 << 18)).sum() == ranks.size << 18
"""
MPI = "from mpi4py import MPI\nassert MPI.COMM_WORLD.allreduce(1) == 2\n"
# Arguments, exit code, and a part of what the command prints.
COMMANDS: list[tuple[str, int, str]] = [
    ("--version", 0, "rdma_transport "),
    ("info", 0, "fabric shm (shared memory on one host): available"),
    ("config", 0, "RDMA_TRANSPORT_FABRIC"),
    ("doctor", 0, '"tensorflow=='),
    (
        "run -n 2 -- rdma-transport qualify --seconds 1 --largest 1MiB --memory 64MiB",
        0,
        "notifications with",
    ),
    ("metrics --once", 0, "rdma_transport"),
    ("capacity --size 512MiB --workers 8 --servers 8 --compute 80ms", 0, "512"),
    ("plan model.pb --cluster ps=1,worker=1", 2, '"tensorflow=='),
    ("bench fabric --sizes 64 --iterations 20 --rounds 1", 0, "write_lat"),
    ("bench latency --seconds 0.1", 3, '"tensorflow=='),
    ("run -n 2 -- python sum.py", 0, ""),
    ("run -n 2 --mpi4py -- python sum_of_mpi.py", 0, ""),
]


def ran(words: list[str], folder: Path) -> tuple[int, str]:
    """Run the command; return its exit code and what it printed."""
    done = subprocess.run(
        [str(HERE / "rdma-transport"), *words],
        cwd=folder,
        env=os.environ | {"PATH": f"{HERE}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def helped(words: list[str], folder: Path) -> list[str]:
    """Check the help of a command and of those below it; return their names."""
    code, text = ran([*words, "--help"], folder)
    assert code == 0, f"{words} --help exits with {code}: {text}"
    assert text.startswith("Usage: rdma-transport"), text
    garbled = re.findall(r"\[\[.*|.*\\\[.*", text)
    assert not garbled, f"{words} --help prints {garbled}"
    below = re.findall(r"^  (\S+)  ", text.partition("\nCommands:\n")[2], re.MULTILINE)
    return [" ".join(words), *(name for each in below for name in helped([*words, each], folder))]


def try_grpc(folder: Path) -> None:
    """The doctor says of a gRPC server that it is not TensorFlow's: by grpcio and protobuf."""
    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    code, text = ran(["doctor", "--peer", f"127.0.0.1:{port}", "--json"], folder)
    server.stop(None)
    (found,) = [each for each in json.loads(text)["checks"] if each["name"] == "peer_server"]
    assert (code, found["why"]) == (4, "the peer speaks gRPC, but is not a TensorFlow server"), text


def main() -> None:
    import rdma_transport.collectives
    import rdma_transport.fabric
    import rdma_transport.mpi
    import rdma_transport.observe.viewer  # by textual

    assert rdma_transport.stats()["loaded"] is False
    assert "tensorflow" not in sys.modules
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sum.py").write_text(SUM)
        (folder / "sum_of_mpi.py").write_text(MPI)
        (folder / "model.pb").write_bytes(b"\x0a\x09\x0a\x01a\x12\x04NoOp")
        names = helped([], folder)
        assert len(names) > 15, names
        for line, code, part in COMMANDS:
            found = ran(line.split(), folder)
            assert found[0] == code, f"{line} exits with {found[0]}: {found[1]}"
            assert part in found[1], f"{line} prints {found[1]}"
        try_grpc(folder)
    print(f"help of {len(names)} commands and {len(COMMANDS) + 1} of their calls work")


if __name__ == "__main__":
    main()
