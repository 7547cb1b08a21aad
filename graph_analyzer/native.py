"""The one door to the analysis, which is C++ and lies in ``native/analyzer/``."""

from graph_analyzer.errors import AnalysisError


def analyze(graph_def: bytes, request: str) -> str:
    """Return the plan as JSON text for a serialized GraphDef and a request in JSON.

    Raises ``AnalysisError`` with the analyzer's sentence, or where it was not built.
    """
    try:
        from rdma_transport import _native
    except ImportError as error:
        raise AnalysisError(
            f"the native analyzer cannot be loaded ({error}); install rdma_transport or run "
            "`make venv`"
        ) from error
    call = getattr(_native, "analyze", None)
    if call is None:
        raise AnalysisError(
            "the native library has no graph analyzer: it is of another version than this "
            "program; install rdma_transport again or run `make venv`"
        )
    try:
        return str(call(graph_def, request))
    except AnalysisError:
        raise
    except ValueError as error:
        raise AnalysisError(str(error)) from error
