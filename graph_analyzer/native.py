"""The interface to the C++ analyzer in ``native/analyzer/``."""

import os
from collections.abc import Mapping
from types import ModuleType

from graph_analyzer.errors import AnalysisError
from graph_analyzer.units import parse_size


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
    from rdma_transport import wheels

    if refusal := wheels.refusal():
        raise AnalysisError(refusal)
    try:
        import tensorflow  # noqa: F401  its libraries must be in the process first

        from rdma_transport import _analyzer
    except ImportError as error:
        raise AnalysisError(
            f"the native analyzer cannot be loaded ({error}). Install rdma_transport again"
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
