"""Runs scripts one after another, each in a process that begins with TensorFlow imported.

usage: several.py FOLDER NAME...

Results of the script NAME are in FOLDER/NAME, and its exit code and output on rank R in R.code and
R.text there. To be started by the launcher, of which each of these processes is then a rank.
"""

import os
import runpy
import sys
from pathlib import Path

import keras  # noqa: F401
import tensorflow  # noqa: F401

import rdma_transport.tensorflow as rt

SCRIPTS = Path(__file__).parent / "scripts"


def main() -> None:
    """Run each script as the main program of a process of its own."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    rt.close()  # the import has connected this process: each other one connects anew
    rank, port = os.environ["RANK"], int(os.environ["MASTER_PORT"])
    for number, name in enumerate(names):
        own = folder / name
        (own / "files").mkdir(parents=True, exist_ok=True)
        child = os.fork()
        if child == 0:
            os.environ |= {"RESULTS": str(own), "FOLDER": str(own / "files")}
            os.environ |= {"MASTER_PORT": str(port + number), "TORCHELASTIC_RUN_ID": name}
            text = os.open(own / f"{rank}.text", os.O_CREAT | os.O_WRONLY)
            os.dup2(text, 1)
            os.dup2(text, 2)
            sys.path[0] = str(SCRIPTS)
            sys.argv = [str(SCRIPTS / f"{name}.py")]
            runpy.run_path(sys.argv[0], run_name="__main__")
            return
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        (own / f"{rank}.code").write_text(str(code))


main()
