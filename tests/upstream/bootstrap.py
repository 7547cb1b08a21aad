"""Runs one of TensorFlow's test files as a program, with the protocol of all servers replaced.

Every way to a server (`Server`, `connect_to_cluster`, strategies, `TF_CONFIG`, a server definition
that a test makes itself) ends in one of five calls into TensorFlow's library, which take a
`ServerDef`. Only that is rewritten, and only where it says "grpc": the tests, and TensorFlow's
Python, stay as they are.
"""

import atexit
import json
import os
import sys
import threading
import time
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorflow.compiler import xla
from tensorflow.core.protobuf.tensorflow_server_pb2 import ServerDef
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import ops

import rdma_transport

sys.modules["xla"] = xla  # Bazel's name of it
TAKES_SERVER_DEF = {
    pywrap_tf_session: ("TF_NewServer",),
    pywrap_tfe: (
        "TFE_ContextSetServerDef",
        "TFE_ContextSetServerDefWithTimeoutAndRetries",
        "TFE_ContextUpdateServerDef",
        "TFE_EnableCollectiveOps",
    ),
}


def replace_protocol(protocol: str, stats: Path) -> None:
    """Make "grpc" mean `protocol`; keep this process's `stats()` in a file of the folder `stats`.

    A thread writes them from the first server on: processes of these tests end by SIGKILL, too.
    """
    watched = set()

    def watch() -> None:
        def write() -> None:
            part = stats / f"{os.getpid()}.part"
            part.write_text(json.dumps(rdma_transport.stats()))
            part.rename(part.with_suffix(".json"))

        def write_on() -> None:
            while True:
                write()
                time.sleep(0.2)

        if os.getpid() not in watched:
            watched.add(os.getpid())
            atexit.register(write)
            threading.Thread(target=write_on, daemon=True).start()

    def with_protocol(original: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(*arguments: Any) -> Any:
            watch()
            return original(*(rewritten(a) if isinstance(a, bytes) else a for a in arguments))

        return replaced

    def rewritten(text: bytes) -> bytes:
        definition = ServerDef.FromString(text)
        if definition.protocol == "grpc":
            definition.protocol = protocol
        return definition.SerializeToString()

    for module, names in TAKES_SERVER_DEF.items():
        for name in names:
            setattr(module, name, with_protocol(getattr(module, name)))


def leave_out(done: set[str]) -> None:
    """Leave out the tests of these names ("Class.test"), which ran before."""
    names = unittest.TestLoader.getTestCaseNames

    def others(loader: unittest.TestLoader, case: Any) -> Any:
        return [n for n in names(loader, case) if f"{case.__name__}.{n}" not in done]

    unittest.TestLoader.getTestCaseNames = others  # type: ignore[assignment]


def run(test: str, protocol: str, stats: str, done: list[str]) -> None:
    replace_protocol(protocol, Path(stats))
    leave_out(set(done))
    source = Path(test).read_text()
    if "import tensorflow as tf" not in source:
        ops.disable_eager_execution()  # Bazel runs these without TensorFlow's __init__.py
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = test
    exec(compile(source, test, "exec"), vars(main))
