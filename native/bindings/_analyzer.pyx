# cython: language_level=3
"""The graph analyzer. Thin: `graph_analyzer` wraps it. Import TensorFlow first."""

from libcpp.string cimport string
from libcpp.string_view cimport string_view

from analysis cimport Analyze, Plan, PlanJson, Request, Status


def analyze(graph_def: bytes, tasks: list, arena_bytes: int, inline_bytes: int,
            default_device: str) -> str:
    """Return the plan as a JSON object; raise ValueError if the graph cannot be analyzed.

    `tasks` are names such as "/job:ps/task:0". Runs without the interpreter's lock.
    """
    cdef Request request
    cdef Plan plan
    cdef Status status
    cdef string json
    cdef string_view view = string_view(<const char*>graph_def, <size_t>len(graph_def))
    for task in tasks:
        request.tasks.push_back(task.encode())
    request.default_device = default_device.encode()
    request.limits.arena_bytes = arena_bytes
    request.limits.inline_bytes = inline_bytes
    with nogil:
        status = Analyze(view, request, &plan)
        if status.ok():
            json = PlanJson(plan)
    if not status.ok():
        raise ValueError(status.message().decode(errors="replace"))
    return json.decode()
