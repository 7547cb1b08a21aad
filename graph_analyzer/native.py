"""The interface to the C++ analyzer in ``native/analyzer/``."""

import json
import os
from types import ModuleType

from graph_analyzer.errors import AnalysisError
from graph_analyzer.units import parse_size


def analyze(graph_def: bytes, request: str) -> str:
    """Return the plan as JSON text for a serialized GraphDef and a request in JSON.

    The request: ``cluster`` (job name to number of tasks), ``default_device``, and optionally
    ``arena_limit`` and ``inline_limit`` in bytes, which default to the settings. Raises
    ``AnalysisError`` with the analyzer's message, or if the analyzer cannot be loaded.
    """
    analyzer = _load()
    asked = json.loads(request)
    tasks = [
        f"/job:{job}/task:{index}"
        for job, count in asked["cluster"].items()
        for index in range(count)
    ]
    arena = asked.get("arena_limit")
    inline = asked.get("inline_limit")
    try:
        return str(
            analyzer.analyze(
                graph_def,
                tasks,
                _arena_size() if arena is None else arena,
                parse_size(_setting("RDMA_TRANSPORT_INLINE_MAX")) if inline is None else inline,
                asked.get("default_device", ""),
            )
        )
    except AnalysisError:
        raise
    except ValueError as error:
        raise AnalysisError(str(error)) from error


def _load() -> ModuleType:
    try:
        import tensorflow  # noqa: F401  its libraries must be in the process first

        from rdma_transport import _analyzer
    except ImportError as error:
        raise AnalysisError(
            f"the native analyzer cannot be loaded ({error}). Install rdma_transport, or run "
            "`make venv`"
        ) from error
    return _analyzer


def _setting(name: str) -> str:
    from rdma_transport import settings

    return next(setting.value for setting in settings() if setting.name == name)


def _arena_size() -> int:
    text = _setting("RDMA_TRANSPORT_ARENA_SIZE")
    if text.lower() != "auto":
        return parse_size(text)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 * 3
