"""Rewrites the graph of a step into that of a rank by itself, which exchanges with no other one."""

from collections.abc import Iterator
from typing import Any

_OURS = "RdmaTransport"


def isolate(graph_def: Any, group: int, ranks: int) -> None:
    """Let operations exchange in `group`, which has one rank, as if `ranks` gave what it gives.

    What it gathers is repeated for the others. Comparisons of ranks would fail, and are dropped.
    """
    _rename_functions(graph_def, f"_in_group_{group}")
    _Body(graph_def, ranks).isolate(group)
    for function in graph_def.library.function:
        _Body(function, ranks).isolate(group)


def _rename_functions(graph_def: Any, suffix: str) -> None:
    """Give functions names of their own: TensorFlow knows others under the old ones."""
    library = graph_def.library
    del library.gradient[:], library.registered_gradients[:]
    old = {each.signature.name for each in library.function}
    for function in library.function:
        function.signature.name += suffix
    for nodes in (graph_def.node, *(each.node_def for each in library.function)):
        for node in nodes:
            if node.op in old:
                node.op += suffix
            for value in node.attr.values():
                for each in (value.func, *value.list.func):
                    if each.name in old:
                        each.name += suffix


class _Body:
    """The nodes of a graph or of a function, in which outputs have names of another form."""

    def __init__(self, body: Any, ranks: int) -> None:
        self._body, self._ranks = body, ranks
        self._is_function = hasattr(body, "signature")
        self._nodes = body.node_def if self._is_function else body.node

    def isolate(self, group: int) -> None:
        """Rewrite the operations."""
        repeated: dict[str, str] = {}
        for node in list(self._nodes):
            if node.op == "Assert":
                node.op = "NoOp"
                kept = [each for each in node.input if each.startswith("^")]
                del node.input[:]
                node.input.extend(kept)
                node.attr.clear()
            if not node.op.startswith(_OURS) or "group" not in node.attr:
                continue
            node.attr["group"].i = group
            if "root" in node.attr:
                node.attr["root"].i = 0
            if node.op == f"{_OURS}AllGather":
                for output, names, kind in self._gathered(node):
                    repeated |= dict.fromkeys(names, self._repeat(output, kind))
        self._replace(repeated)

    def _gathered(self, node: Any) -> Iterator[tuple[str, list[str], Any]]:
        """Yield the outputs of an all-gather: the name of each, its other names, and its type."""
        from tensorflow.core.framework import types_pb2

        count, kind = node.attr["N"].i, node.attr["T"].type
        outputs = [("gathered", place, kind) for place in range(count)]
        for place, (part, index, of) in enumerate([*outputs, ("rows", 0, types_pb2.DT_INT64)]):
            names = [f"{node.name}:{part}:{index}"]
            if not self._is_function:
                names = [f"{node.name}:{place}"] + ([node.name] if place == 0 else [])
            yield names[0], names, of

    def _repeat(self, output: str, kind: Any) -> str:
        """Add an operation that repeats an output for each rank; return the name of the result."""
        from tensorflow import make_tensor_proto
        from tensorflow.core.framework import types_pb2

        name = output.replace(":", "_") + "/repeated"
        axis = self._nodes.add(name=f"{name}/axis", op="Const")
        axis.attr["dtype"].type = types_pb2.DT_INT32
        axis.attr["value"].tensor.CopyFrom(make_tensor_proto(0))
        end = ":output:0" if self._is_function else ""
        inputs = [output] * self._ranks + [axis.name + end]
        concat = self._nodes.add(name=name, op="ConcatV2", input=inputs)
        concat.attr["N"].i = self._ranks
        concat.attr["T"].type = kind
        concat.attr["Tidx"].type = types_pb2.DT_INT32
        return name + end

    def _replace(self, repeated: dict[str, str]) -> None:
        """Let others use what is repeated."""
        made = {each.partition(":")[0] for each in repeated.values()}
        for node in self._nodes:
            if node.name not in made:
                node.input[:] = [repeated.get(each, each) for each in node.input]
        if self._is_function:
            for name, value in self._body.ret.items():
                self._body.ret[name] = repeated.get(value, value)
