"""New nodes in a model, all with unused names.

Dynamic sizes stay dynamic: shapes are written with 0 and -1 where ONNX allows this, otherwise they
are computed. Among the operators used here, only Split differs between opsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from ..arrays import Array
from .graphs import remove, roots, values

_TO_THE_END = (1 << 63) - 1

Crops = Sequence[tuple[int, int]]
"""Positions to cut off each spatial axis, as (begin, end)."""

Operands = Sequence[ir.Value | None]


class Builder:
    """Writer of nodes that replace `node`; their metadata names `origin`, the pass."""

    def __init__(self, model: ir.Model, node: ir.Node, opset: int, origin: str) -> None:
        self._model, self._node, self._opset, self._origin = model, node, opset, origin
        names = [value.name for value in values(model)]
        names += [present.name for body in roots(model) for present in body.all_nodes()]
        self._taken = set(names)  # one name space for nodes and values, so that names cannot clash
        self._nodes: list[ir.Node] = []

    def op(
        self, kind: str, inputs: Operands, dtype: ir.DataType | None = None, **attributes: object
    ) -> ir.Value:
        """Add a node of ONNX's own domain; return its output, of type `dtype` or its input's."""
        return self._put(kind, inputs, attributes, dtype=dtype)[0]

    def _put(
        self, kind: str, inputs: Operands, attributes: Mapping[str, object], outputs: int = 1,
        dtype: ir.DataType | None = None,
    ) -> Sequence[ir.Value]:  # fmt: skip
        name = self._fresh(kind)
        present = {key: entry for key, entry in attributes.items() if entry is not None}
        node = ir.node(kind, list(inputs), present, num_outputs=outputs, name=name)
        replaces = self._node.name or ""
        node.metadata_props.update({"upconv.pass": self._origin, "upconv.replaces": replaces})
        node.meta.update(self._node.meta)
        element_type = dtype or (inputs[0].dtype if inputs and inputs[0] is not None else None)
        for i, y in enumerate(node.outputs):
            y.name = self._unused(f"{name}_output" if outputs == 1 else f"{name}_output_{i}")
            y.type = None if element_type is None else ir.TensorType(element_type)
        self._nodes.append(node)
        return node.outputs

    def constant(self, array: Array, hint: str) -> ir.Value:
        """Add an initializer, or a Constant node in a subgraph or function."""
        name = self._fresh(hint)
        tensor = ir.tensor(np.asarray(array, order="C"), name=name)
        if self._node.graph is not self._model.graph:
            return self.op("Constant", [], tensor.dtype, value=tensor)
        value = ir.val(name, const_value=tensor)
        self._model.graph.register_initializer(value)
        return value

    def integers(self, entries: Iterable[int]) -> ir.Value:
        """Add a constant int64 vector, such as a shape or axes."""
        return self.constant(np.array(list(entries), np.int64), "shape")

    def deconv(
        self, operands: Operands, attributes: Mapping[str, object], heir: bool = True
    ) -> ir.Value:
        """Add a transposed convolution; an `heir` takes the name of the node that it replaces."""
        [y] = self._put("ConvTranspose", _present(operands), attributes)
        if heir and self._node.name:
            self._nodes[-1].name = self._node.name
        return y

    def conv(
        self, operands: Operands, *, zeros: Crops, dilations: Sequence[int], groups: int
    ) -> ir.Value:
        """Add a convolution of stride 1 with `zeros` around its input."""
        return self.op(
            "Conv",
            _present(operands),
            dilations=list(dilations),
            group=groups,
            pads=[*(begin for begin, _ in zeros), *(end for _, end in zeros)],
            strides=[1] * len(zeros),
        )

    def cut(self, x: ir.Value, crops: Crops) -> ir.Value:
        """Cut positions off the ends of x's spatial axes."""
        ends = [(a, -b or _TO_THE_END, axis) for axis, (a, b) in enumerate(crops, 2) if a or b]
        return self.op("Slice", [x, *map(self.integers, zip(*ends, strict=True))]) if ends else x

    def split(self, x: ir.Value, parts: int, axis: int) -> Sequence[ir.Value]:
        """Split x into equal parts along one axis."""
        count = parts if self._opset >= 18 else None
        return self._put("Split", [x], {"axis": axis, "num_outputs": count}, outputs=parts)

    def shuffle(
        self, x: ir.Value, strides: Sequence[int], channels: int, mode: str, *, may_be_empty: bool
    ) -> ir.Value:
        """Add depth to space of any rank: (N, prod(s)*channels, *n) to (N, channels, *(n*s)).

        mode: phase r of channel c is channel c*s + r ("CRD") or r*C + c ("DCR").
        may_be_empty: whether N may be 0; Reshape then cannot infer a length written as -1.
        """
        rank = len(strides)
        if rank == 2 and strides[0] == strides[1]:
            return self.op("DepthToSpace", [x], blocksize=strides[0], mode=mode)
        # A constant shape can leave one size dynamic; for more, the shape must be computed.
        sizes: Sequence[int] | ir.Value = [-1]
        larger = sizes
        if rank > 1:
            shape = self.op("Shape", [x], ir.DataType.INT64)
            sizes = self.op("Slice", [shape, *map(self.integers, ([2], [_TO_THE_END], [0]))])
            larger = self.op("Mul", [sizes, self.integers(strides)])
        c, first = (1, 2) if mode == "CRD" else (rank + 1, 1)
        parts = [channels, *strides] if mode == "CRD" else [*strides, channels]
        perm = [0, c, *(axis for i in range(rank) for axis in (rank + 2 + i, first + i))]
        if rank == 1 and may_be_empty:  # N is the -1; 0 copies the length, as an axis is inserted
            x = self._reshape(self.squeeze(x, [1], undo=True), [-1, *parts], [0])
            x = self.op("Flatten", [self.op("Transpose", [x], perm=perm)], axis=2)
            return self._reshape(self.squeeze(x, [1], undo=True), [-1, channels], [0])
        x = self._reshape(x, [0, *parts], sizes)
        return self._reshape(self.op("Transpose", [x], perm=perm), [0, channels], larger)

    def _reshape(
        self, x: ir.Value, leading: Sequence[int], sizes: Sequence[int] | ir.Value
    ) -> ir.Value:
        if not isinstance(sizes, ir.Value):
            return self.op("Reshape", [x, self.integers([*leading, *sizes])])
        shape = self.op("Concat", [self.integers(leading), sizes], axis=0)
        return self.op("Reshape", [x, shape], x.dtype)

    def squeeze(self, x: ir.Value, axes: Sequence[int], *, undo: bool = False) -> ir.Value:
        """Remove axes of length 1 from x; `undo` inserts them instead."""
        return self.op("Unsqueeze" if undo else "Squeeze", [x, self.integers(axes)])

    def replace(self, old: ir.Value, new: ir.Value, dead: Sequence[ir.Node]) -> None:
        """Replace `old` by `new`, which takes its name, and remove the nodes in `dead`.

        dead: unused nodes, last in the graph first; the new nodes are inserted before that one.
        """
        old_name, old.name = old.name, None
        new.name, new.type, new.shape = old_name, old.type or new.type, old.shape
        new.metadata_props.update(old.metadata_props)
        self._nodes[-1].doc_string = self._node.doc_string
        for key, entry in self._node.metadata_props.items():
            self._nodes[-1].metadata_props.setdefault(key, entry)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        cast(ir.Graph, self._node.graph).insert_before(dead[0], self._nodes)
        remove(dead)

    def _fresh(self, hint: str) -> str:
        return self._unused(f"{self._node.name or self._node.outputs[0].name or 'node'}/{hint}")

    def _unused(self, base: str) -> str:
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name


def _present(operands: Operands) -> Operands:
    """Drop the last operand if it is absent: OpenVINO refuses an empty name for a bias."""
    return operands if operands[-1] is not None else operands[:-1]
