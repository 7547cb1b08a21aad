"""The options that several commands have, and the plan that they ask for."""

import contextlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from graph_analyzer.errors import AnalysisError
from graph_analyzer.plan import Plan

GraphPath = Annotated[
    Path,
    typer.Argument(
        metavar="GRAPH",
        help="Read a SavedModel directory, a .pb, .meta or .pbtxt file, the .json of a plan, a "
        "Keras model (.keras), or a function or model of a script, as train.py:step. The script is "
        "run.",
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster", "-c", help="Set the cluster: ps=1,worker=2, JSON or a complete TF_CONFIG."
    ),
]
ArenaLimit = Annotated[
    str | None,
    typer.Option(
        help="Limit the planned memory per task, as 4GiB.  [default: RDMA_TRANSPORT_ARENA_SIZE]"
    ),
]
InlineLimit = Annotated[
    str | None,
    typer.Option(help="Send tensors up to this size inline.  [default: RDMA_TRANSPORT_INLINE_MAX]"),
]
DefaultDevice = Annotated[
    str,
    typer.Option(help="Place operations without a device here, as /job:worker/task:0."),
]
Tags = Annotated[
    str | None, typer.Option(help="Choose the meta graph of a SavedModel by its tags: serve,gpu.")
]
Batch = Annotated[int | None, typer.Option(help="Set the rows per worker and step.")]


def read_plan(
    graph: Path,
    cluster: str,
    arena_limit: str | None,
    inline_limit: str | None,
    default_device: str,
    tags: str | None,
) -> Plan:
    """Read a plan, or analyze a graph; raise ``AnalysisError``."""
    if graph.suffix == ".json":
        from rdma_transport.files import read_text

        refuse(
            "is for the analysis of a graph, and a .json file has its result: omit the option, or "
            "give the graph",
            cluster=cluster,
            arena_limit=arena_limit,
            inline_limit=inline_limit,
            default_device=default_device,
            tags=tags,
        )
        return Plan.from_json(read_text(graph))
    if not cluster:
        raise AnalysisError("a graph needs a cluster: add --cluster ps=1,worker=2")
    from graph_analyzer import analyze

    return analyze(
        load(graph),
        cluster,
        arena_limit=arena_limit,
        inline_limit=inline_limit,
        default_device=default_device,
        tags=tags_of(tags),
    )


def refuse(why: str, **options: Any) -> None:
    """Raise ``AnalysisError`` if one of the options is given; `why` follows its name."""
    for name, value in options.items():
        if value not in (None, ""):
            raise AnalysisError(f"--{name.replace('_', '-')} {why}")


def tags_of(text: str | None) -> list[str] | None:
    """Return the tags that the option names."""
    return None if text is None else [tag.strip() for tag in text.split(",") if tag.strip()]


def load(graph: Path) -> Any:
    """Return what a graph's name stands for, in a form that the analyzer knows."""
    if ".py:" in graph.name:
        return _in_script(graph)
    return _keras_model(graph) if graph.suffix == ".keras" else graph


def _keras_model(path: Path) -> Any:
    from graph_analyzer.native import quiet

    try:
        os.environ["KERAS_BACKEND"] = "tensorflow"
        with quiet():
            import keras

            return keras.saving.load_model(path, compile=False)
    except (ImportError, OSError, ValueError, TypeError) as error:
        raise AnalysisError(f"{path}: {error}") from error


def _in_script(place: Path) -> Any:
    """Run the script ``FILE.py`` of ``FILE.py:NAME`` and return what it calls ``NAME``."""
    import runpy

    _load_tensorflow()
    script, _, name = str(place).rpartition(":")
    try:
        found = runpy.run_path(script)
    except Exception as error:
        raise AnalysisError(f"{script} failed: {type(error).__name__}: {error}") from error
    if name not in found:
        raise AnalysisError(f"{script} has nothing with the name {name!r}")
    return found[name]


def _load_tensorflow() -> None:
    """Load TensorFlow without its lines about the host; a script may need another one, or none."""
    from graph_analyzer.native import quiet

    with contextlib.suppress(Exception), quiet():
        import tensorflow as tf

        tf.config.list_physical_devices()
