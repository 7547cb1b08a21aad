"""Finds the tensors of a graph that cross between tasks, and plans where to place them.

``analyze(graph, cluster)`` returns a ``Plan``, and ``reductions(graph)`` what the ranks of a
data-parallel step exchange. ``capacity`` computes estimates from a plan, and ``simulate`` the step
times of a capacity's cluster. ``python -m graph_analyzer`` prints all of them.
"""

from graph_analyzer.analyze import analyze
from graph_analyzer.calibration import calibrate
from graph_analyzer.capacity import Capacity, capacity
from graph_analyzer.codec import schema
from graph_analyzer.errors import AnalysisError
from graph_analyzer.plan import Plan, Traffic
from graph_analyzer.records import Edge, Site, Task, Variable
from graph_analyzer.reductions import Reduction, Reductions, reductions
from graph_analyzer.simulation import Behavior, StepTimes, simulate

__all__ = [
    "AnalysisError",
    "Behavior",
    "Capacity",
    "Edge",
    "Plan",
    "Reduction",
    "Reductions",
    "Site",
    "StepTimes",
    "Task",
    "Traffic",
    "Variable",
    "analyze",
    "calibrate",
    "capacity",
    "reductions",
    "schema",
    "simulate",
]
