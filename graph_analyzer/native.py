"""The interface to the C++ analyzer in ``native/analyzer/``."""

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from graph_analyzer.errors import AnalysisError
from rdma_transport.units import parse_size


def analyze(
    graph_def: bytes,
    cluster: Mapping[str, int],
    default_device: str,
    arena_limit: int | None,
    inline_limit: int | None,
) -> str:
    """Return the plan as JSON text for a serialized GraphDef.

    ``cluster`` has the number of tasks of each job. The limits are in bytes; ``None`` means the
    setting. Raises ``AnalysisError`` with the analyzer's message, or if it cannot be loaded.
    """
    analyzer = _load()
    tasks = [f"/job:{job}/task:{index}" for job, n in cluster.items() for index in range(n)]
    try:
        if arena_limit is None:
            arena_limit = _arena_size()
        if inline_limit is None:
            inline_limit = parse_size(_setting("RDMA_TRANSPORT_INLINE_MAX"))
        return str(analyzer.analyze(graph_def, tasks, arena_limit, inline_limit, default_device))
    except AnalysisError:
        raise
    except ValueError as error:
        raise AnalysisError(str(error)) from error


def _load() -> ModuleType:
    """Load the analyzer. It needs TensorFlow's libraries, but not its slow Python modules."""
    from rdma_transport import wheels

    if refusal := wheels.refusal():
        raise AnalysisError(refusal)
    try:
        if "tensorflow" not in sys.modules:
            _load_tensorflow()
        from rdma_transport import _analyzer
    except (ImportError, OSError) as error:
        raise AnalysisError(
            f"the native analyzer cannot be loaded ({error}). Install rdma_transport again"
        ) from error
    return _analyzer


def _load_tensorflow() -> None:
    found = find_spec("tensorflow")
    if found is None or not found.submodule_search_locations:
        raise ImportError("TensorFlow is not installed")
    folder = Path(found.submodule_search_locations[0])
    with quiet():
        for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
            ctypes.CDLL(os.fspath(folder / name), ctypes.RTLD_GLOBAL)


@contextmanager
def quiet() -> Iterator[None]:
    """Discard the lines about the host that TensorFlow writes to stderr while it is loaded."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _setting(name: str) -> str:
    from rdma_transport import settings

    return next(setting.value for setting in settings() if setting.name == name)


def _arena_size() -> int:
    text = _setting("RDMA_TRANSPORT_ARENA_SIZE")
    if text.lower() != "auto":
        return parse_size(text)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 * 3
