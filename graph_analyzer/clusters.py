"""Converts descriptions of a cluster to the number of tasks per job."""

import json
import re
from collections.abc import Mapping
from typing import Any

from graph_analyzer.errors import AnalysisError

MAX_TASKS = 2**16
_JOB = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_FORMS = "ps=1,worker=2, or a dict or JSON from job names to counts or lists of addresses"


def task_counts(cluster: Any) -> dict[str, int]:
    """Return the number of tasks per job. ``analyze`` documents the forms of ``cluster``.

    A job given by task numbers has tasks up to the highest number. Raises ``AnalysisError``.
    """
    if isinstance(cluster, str):
        cluster = _from_text(cluster)
    if hasattr(cluster, "as_dict"):
        cluster = cluster.as_dict()
    if not isinstance(cluster, Mapping):
        raise AnalysisError(f"the cluster is a {type(cluster).__name__}; give {_FORMS}")
    if not cluster:
        raise AnalysisError(f"the cluster has no tasks; give {_FORMS}")
    counts = {_job(job): _count(job, tasks) for job, tasks in cluster.items()}
    if sum(counts.values()) > MAX_TASKS:
        raise AnalysisError(f"the cluster has more than {MAX_TASKS} tasks, which is the maximum")
    return counts


def _from_text(text: str) -> Any:
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise AnalysisError(f"the cluster is not JSON: {error}") from error
        inner = value.get("cluster")
        # a complete TF_CONFIG
        return inner if isinstance(inner, dict) and "task" in value else value
    pairs: dict[str, int] = {}
    for part in text.split(","):
        job, found, count = (piece.strip() for piece in part.partition("="))
        if not found or not re.fullmatch(r"[0-9]{1,6}", count, re.ASCII):
            raise AnalysisError(f"the cluster has an invalid part {part.strip()!r}; give {_FORMS}")
        if job in pairs:
            raise AnalysisError(f"the cluster names the job {job!r} twice")
        pairs[job] = int(count)
    return pairs


def _job(name: Any) -> str:
    if not isinstance(name, str) or not _JOB.fullmatch(name):
        raise AnalysisError(
            f"{name!r} is not a job name; use a letter, followed by letters, digits and _"
        )
    return name


def _count(job: str, tasks: Any) -> int:
    if isinstance(tasks, bool):
        count = 0
    elif isinstance(tasks, int):
        count = tasks
    elif isinstance(tasks, Mapping):
        numbers = [int(number) for number in tasks if re.fullmatch(r"[0-9]{1,6}", str(number))]
        count = max(numbers) + 1 if numbers and len(numbers) == len(tasks) else 0
    elif isinstance(tasks, list | tuple):
        count = len(tasks)
    else:
        count = 0
    if count < 1:
        raise AnalysisError(f"the job {job!r} has no tasks: {tasks!r}; give {_FORMS}")
    return count
