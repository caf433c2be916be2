"""How much memory a layer's form takes while it runs, by its shapes alone.

1. Weights count all the time, every other value from the node that makes it to the last reader.
2. What only gives the same elements another shape makes nothing new.

Runtimes do better where they fuse nodes, and worse where they copy into layouts of their own; what
the figure tells is how forms compare: what a shuffle or an unfolded kernel holds beside the result.
What lives here: counting. What never does: measuring what a process takes.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from ..known import known

_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})


def peak_bytes(model: onnx.ModelProto, sizes: Mapping[str, tuple[int, ...]]) -> int | None:
    """The most bytes that a model's values and weights take at once; None if a shape is unknown.

    model: without subgraphs. sizes: the shapes of its inputs, by name.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y)'
    >>> text += "{ a = Relu(x) b = Neg(a) y = Add(a, b) }"
    >>> peak_bytes(onnx.parser.parse_model(text), {"x": (5,)})
    60
    """
    graph, told = model.graph, known(model, sizes)
    names = {value.name for value in (*graph.input, *graph.initializer)}
    names |= {name for node in graph.node for name in node.output if name}
    nbytes = {name: size for name in names if (size := told.nbytes(name)) is not None}
    if len(nbytes) < len(names):
        return None
    weights = {tensor.name for tensor in graph.initializer}
    home, last = _homes(graph), _last_readers(graph)
    live = {value.name for value in graph.input if value.name not in weights}
    peak = sum(nbytes[name] for name in live)
    for at, node in enumerate(graph.node):
        live |= {name for name in node.output if name and home.get(name, name) == name}
        peak = max(peak, sum(nbytes[name] for name in live))
        live = {name for name in live if last.get(name, -1) > at}
    return peak + sum(nbytes[name] for name in weights)


def _homes(graph: onnx.GraphProto) -> dict[str, str]:
    """Value that is another one in a different shape -> that one."""
    home: dict[str, str] = {}
    for node in graph.node:
        if node.op_type in _VIEWS:
            home[node.output[0]] = home.get(node.input[0], node.input[0])
    return home


def _last_readers(graph: onnx.GraphProto) -> dict[str, int]:
    """Value -> the last node that reads it or another shape of it; outputs are read after all."""
    home, last = _homes(graph), {}
    for at, node in enumerate(graph.node):
        last.update({home.get(name, name): at for name in node.input})
    return last | {home.get(value.name, value.name): len(graph.node) for value in graph.output}
