"""Notes in a graph what the collectives of TensorFlow exchange, as operations of ours do.

Strategies such as ``MultiWorkerMirroredStrategy`` make them when they trace a step on all workers.
"""

import re
import sys
from collections.abc import Iterable
from typing import Any

from graph_analyzer.errors import AnalysisError
from graph_analyzer.functions import VARIABLE_NAME
from rdma_transport.exchange import ATTRIBUTE, Exchange

_COLLECTIVE = re.compile(
    "Collective(Reduce|ReduceScatter|Gather|BcastSend|BcastRecv|AllToAll)V?[23]?"
)
_OPERATIONS = {
    "Reduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "Gather": "all_gather",
    "BcastSend": "broadcast",
    "BcastRecv": "broadcast",
    "AllToAll": "all_to_all",
}
_GRADIENTS = re.compile("^gradient(_tape|s(_[0-9]+)?)/")
_SAME = ("Identity", "Reshape", "Cast")  # what these return has the name of what they get
_PROTOCOLS = {"grpc": "gRPC", "grpc+verbs": "rdma", "grpc+rdma": "rdma"}


def operation_of(op: str) -> str | None:
    """Return ``all_reduce`` for ``CollectiveReduceV2``; None for what is no collective."""
    found = _COLLECTIVE.fullmatch(op)
    return _OPERATIONS[found[1]] if found else None


def server_protocol() -> str:
    """Return the protocol over which this process takes part in collectives, or nothing."""
    if "tensorflow" not in sys.modules:
        return ""
    from tensorflow.python.eager import context

    made = getattr(context.context(), "_collective_ops_server_def", None)  # has no public name
    return str(made.protocol) if made else ""


def note_collectives(graph_def: Any, protocol: str) -> None:
    """Store in each collective between several tasks what it exchanges, over which protocol."""
    bodies = [graph_def.node, *(each.node_def for each in graph_def.library.function)]
    if not any(operation_of(node.op) for nodes in bodies for node in nodes):
        return
    shapes = _with_shapes(graph_def)
    for nodes in bodies:
        body = _Body(nodes, shapes if nodes is bodies[0] else None)
        for node in nodes:
            if operation_of(node.op) and body.ranks(node) > 1:
                node.attr[ATTRIBUTE].s = body.exchange(node, protocol).to_text().encode()


def _with_shapes(graph_def: Any) -> Any:
    """Return the graph with inferred shapes; None if TensorFlow does not know its operations."""
    import tensorflow as tf

    try:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(graph_def, name="")
    except (ValueError, tf.errors.OpError):
        return None
    return graph


class _Body:
    """The nodes of a graph, or of a function, of which shapes are not known."""

    def __init__(self, nodes: Iterable[Any], graph: Any) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._graph = graph

    def ranks(self, node: Any) -> int:
        """Return the number of tasks in the group of a collective."""
        return self._number(node, "group_size")

    def exchange(self, node: Any, protocol: str) -> Exchange:
        """Return what a collective exchanges."""
        receives = "BcastRecv" in node.op
        size = self._bytes(node.name if receives else node.input[0])
        carrier = _PROTOCOLS.get(protocol, protocol)
        if node.attr["communication_hint"].s.lower() == b"nccl":
            carrier = "NCCL"
        return Exchange(
            ranks=self.ranks(node),
            what=(node.name,) if receives else tuple(self._names(node.input[0])),
            size=size,
            given=size,
            scheme=f"TensorFlow over {carrier}" if carrier else "TensorFlow",
            why=f"{node.op} of group {self._number(node, 'group_key')}",
        )

    def _number(self, node: Any, what: str) -> int:
        """Return the size or the key of a group, which is an attribute or a constant."""
        if what in node.attr:
            return int(node.attr[what].i)
        place = ("group_size", "group_key").index(what) + ("BcastRecv" not in node.op)
        if node.op.endswith("V3"):
            node, place = self._input(node, 1), 2 if what == "group_size" else 0
        value = None if node is None else self._input(node, place)
        if value is None or value.op != "Const":
            raise AnalysisError(f"the {what} of a collective is not a constant of the graph")
        from tensorflow import make_ndarray

        return int(make_ndarray(value.attr["value"].tensor))

    def _input(self, node: Any, place: int) -> Any:
        names = list(node.input)[place : place + 1]
        return self._nodes.get(_node_of(names[0])) if names else None

    def _bytes(self, tensor: str) -> int | None:
        if self._graph is None:
            return None
        found = self._graph.get_tensor_by_name(tensor if ":" in tensor else f"{tensor}:0")
        count = found.shape.num_elements()
        return None if count is None else int(count * found.dtype.size)

    def _names(self, tensor: str) -> list[str]:
        """Return what a tensor is, or each of those that a strategy has packed in it."""
        name = self._source(tensor)
        node = self._nodes.get(name)
        if node is None or node.op != "ConcatV2" or _GRADIENTS.match(name):
            return [self._name(name)]
        return [self._name(self._source(each)) for each in node.input[:-1]]

    def _source(self, tensor: str) -> str:
        """Return the node that computed a tensor, before it got another shape."""
        name, seen = _node_of(tensor), set[str]()
        while not _GRADIENTS.match(name) and name not in seen:
            node = self._nodes.get(name)
            if node is None or node.op not in _SAME or not node.input:
                break
            seen.add(name)
            name = _node_of(node.input[0])
        return name

    def _name(self, node: str) -> str:
        """Return the variable whose gradient a node computes, or the operation, or the node."""
        name = _GRADIENTS.sub("", node)
        parts = name.split("/")
        outer = ["/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
        operation = next((each for each in outer if each in self._nodes), None)
        if name == node or operation is None:
            return name
        variables = {self._variable(each) for each in self._nodes[operation].input} - {""}
        return variables.pop() if len(variables) == 1 else operation

    def _variable(self, tensor: str) -> str:
        """Return the name of the variable that a tensor was read from, or nothing."""
        read = self._nodes.get(self._source(tensor))
        if read is None or read.op != "ReadVariableOp":
            return ""
        handle = self._input(read, 0)
        return "" if handle is None else str(handle.attr[VARIABLE_NAME].s.decode())


def _node_of(tensor: str) -> str:
    return tensor.removeprefix("^").partition(":")[0]
