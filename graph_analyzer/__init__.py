"""Which tensors of a graph cross between tasks, and where the plan places them.

``analyze(graph, cluster)`` gives a ``Plan``; ``capacity`` and ``advise`` reckon with it;
``python -m graph_analyzer`` prints all three.
"""

from graph_analyzer.advice import Advice, advise
from graph_analyzer.analyze import analyze
from graph_analyzer.capacity import Capacity, capacity
from graph_analyzer.codec import schema
from graph_analyzer.errors import AnalysisError
from graph_analyzer.plan import Edge, Plan, Site, Task, Traffic, Variable

__all__ = [
    "Advice",
    "AnalysisError",
    "Capacity",
    "Edge",
    "Plan",
    "Site",
    "Task",
    "Traffic",
    "Variable",
    "advise",
    "analyze",
    "capacity",
    "schema",
]
