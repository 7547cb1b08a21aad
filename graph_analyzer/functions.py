"""Graphs of concrete functions and of Keras models, with the tasks of their variables."""

from collections.abc import Iterable
from typing import Any

from graph_analyzer.errors import AnalysisError

VARIABLE_NAME = "_variable_name"
"""The attribute of a variable's node that has the name which the script gave it."""


def graph_of(function: Any) -> Any:
    """Return the GraphDef of a concrete function, in which captured tensors are where they are now.

    A captured variable becomes a ``VarHandleOp``, so that its type and shape are known.
    """
    graph_def = function.graph.as_graph_def()
    captures = getattr(function.graph, "captures", ())
    nodes = {node.name: node for node in graph_def.node} if captures else {}
    names = _variable_names(function.graph) if captures else {}
    for captured, placeholder in captures:
        node = nodes[placeholder.op.name]
        node.device = _task_device(captured)
        handle = getattr(captured, "_handle_data", None)
        if handle is not None and handle.is_set and len(handle.shape_and_type) == 1:
            _make_variable(node, handle.shape_and_type[0])
        if id(captured) in names:
            node.attr[VARIABLE_NAME].s = names[id(captured)].partition(":")[0].encode()
    return graph_def


def _variable_names(graph: Any) -> dict[int, str]:
    """Return the names of variables by their handles."""
    try:
        variables = getattr(graph, "variables", ())
    except AssertionError:  # one of them is no longer there
        return {}
    return {id(each.handle): each.name for each in variables if hasattr(each, "handle")}


def is_model(graph: Any) -> bool:
    """Return whether this is a Keras model, of Keras 2 or 3."""
    return all(hasattr(type(graph), name) for name in ("trainable_variables", "compile", "fit"))


def worker_of(cluster: dict[str, int]) -> str:
    """Return the task that runs a model's training step, or an empty string if it is not known."""
    return "/job:worker/task:0" if "worker" in cluster else ""


def training_step(model: Any, cluster: dict[str, int]) -> Any:
    """Return the GraphDef of computing the gradients of a model and updating its variables.

    The loss is the sum of the outputs, and the update subtracts the gradient: what crosses between
    tasks does not depend on either. If no variable is on a task, they are on the parameter servers
    in turn, as under ParameterServerStrategy. The model does not change. Raises ``AnalysisError``.
    """
    import tensorflow as tf

    if not getattr(model, "inputs", None):
        raise AnalysisError(
            "the model has no inputs yet. Build it with keras.Input, or give a concrete function "
            "of its training step"
        )

    def replica(inputs: list[Any]) -> None:
        with tf.GradientTape() as tape:
            outputs = model(inputs if len(inputs) > 1 else inputs[0], training=True)
            loss = tf.add_n([tf.reduce_sum(output) for output in tf.nest.flatten(outputs)])
        variables = model.trainable_variables
        _subtract(variables, tape.gradient(loss, variables))

    @tf.function(autograph=False)
    def step(inputs: list[Any]) -> None:
        model.distribute_strategy.run(replica, args=(inputs,))

    specs = [
        tf.TensorSpec(one.shape, one.dtype, f"input_{i}") for i, one in enumerate(model.inputs)
    ]
    graph_def = graph_of(step.get_concrete_function(specs))
    variables = [node for node in graph_def.node if node.op == "VarHandleOp"]
    if "ps" in cluster and not any(node.device for node in variables):
        for i, node in enumerate(variables):
            node.device = f"/job:ps/task:{i % cluster['ps']}"
    return graph_def


def _subtract(variables: Iterable[Any], gradients: Iterable[Any]) -> None:
    import tensorflow as tf

    for variable, gradient in zip(variables, gradients, strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            tf.raw_ops.ResourceScatterSub(
                resource=variable.handle, indices=gradient.indices, updates=gradient.values
            )
        elif gradient is not None:
            tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=gradient)


def _task_device(tensor: Any) -> str:
    device: str = getattr(tensor, "device", "") or ""
    # a process without a cluster calls itself so
    return "" if device.startswith("/job:localhost/") else device


def _make_variable(node: Any, value: Any) -> None:
    node.op = "VarHandleOp"
    node.attr.clear()
    node.attr["dtype"].type = value.dtype
    node.attr["shape"].shape.CopyFrom(value.shape)
    node.attr["shared_name"].s = node.name.encode()
