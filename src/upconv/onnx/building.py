"""New nodes in a model.

A pass says what is to be computed (convolve, cut, shuffle, add a bias); a `Builder` writes the
nodes, names everything afresh, and puts them where the old node stood. Sizes and batch that are
open stay open: shapes are written with 0 and -1 where ONNX lets them, and computed from the value's
own shape where it does not. Of the operators written here only Split differs between opsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import cast

import numpy as np
import onnx_ir as ir

from ..arrays import Array
from .graphs import roots, values

_TO_THE_END = (1 << 63) - 1

Crops = Sequence[tuple[int, int]]
"""Per spatial axis, what is cut off (begin, end)."""


class Order(Enum):
    """Where the phases stand among channels: channel c of phase r is c*s + r, or r*C + c."""

    CHANNEL_MAJOR = "CRD"
    PHASE_MAJOR = "DCR"


class Builder:
    """Writes nodes before `node`, which stands in `model`, and puts them in its place.

    `origin` is the name of the pass, kept in the metadata of every node that is made.
    """

    def __init__(self, model: ir.Model, node: ir.Node, opset: int, origin: str) -> None:
        self._model, self._node, self._opset, self._origin = model, node, opset, origin
        self._taken = _names(model)
        self._nodes: list[ir.Node] = []

    def op(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType | None = None,
        **attributes: object,
    ) -> ir.Value:
        """The output, of type `dtype` or its input's, of one new node of ONNX's own operators."""
        [y] = self._put(kind, inputs, 1, dtype, attributes)
        return y

    def _put(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        outputs: int,
        dtype: ir.DataType | None,
        attributes: Mapping[str, object],
    ) -> Sequence[ir.Value]:
        name = self._fresh(kind)
        present = {key: entry for key, entry in attributes.items() if entry is not None}
        node = ir.node(kind, list(inputs), present, num_outputs=outputs)
        node.name = name
        node.metadata_props["upconv.pass"] = self._origin
        node.metadata_props["upconv.replaces"] = self._node.name or ""
        node.meta.update(self._node.meta)
        given = dtype or (inputs[0].dtype if inputs and inputs[0] is not None else None)
        for i, y in enumerate(node.outputs):
            y.name = self._unused(f"{name}_output" if outputs == 1 else f"{name}_output_{i}")
            y.type = None if given is None else ir.TensorType(given)
        self._nodes.append(node)
        return node.outputs

    def constant(self, array: Array, hint: str) -> ir.Value:
        """An initialiser, or a Constant node where the place is a subgraph's or function's."""
        name = self._fresh(hint)
        tensor = ir.tensor(np.asarray(array, order="C"), name=name)
        if self._node.graph is not self._model.graph:
            return self.op("Constant", [], tensor.dtype, value=tensor)
        value = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(array.shape),
            const_value=tensor,
        )
        self._model.graph.register_initializer(value)
        return value

    def integers(self, entries: Iterable[int]) -> ir.Value:
        """A constant vector of int64, as shapes and axes are."""
        return self.constant(np.array(list(entries), np.int64), "shape")

    def deconv(
        self,
        x: ir.Value,
        w: ir.Value,
        b: ir.Value | None,
        attributes: Mapping[str, object],
        *,
        heir: bool = True,
    ) -> ir.Value:
        """A transposed convolution; an `heir` has the name of the node it comes after."""
        inputs = [x, w] if b is None else [x, w, b]
        [y] = self._put("ConvTranspose", inputs, 1, None, attributes)
        if heir and self._node.name:
            self._nodes[-1].name = self._node.name
        return y

    def conv(
        self,
        x: ir.Value,
        w: ir.Value,
        b: ir.Value | None,
        *,
        zeros: Crops,
        dilations: Sequence[int],
        groups: int,
    ) -> ir.Value:
        """A convolution of stride 1 with `zeros` around x; negative ones are cut off x."""
        x = self.cut(x, [(max(-begin, 0), max(-end, 0)) for begin, end in zeros])
        around = [(max(begin, 0), max(end, 0)) for begin, end in zeros]
        return self.op(
            "Conv",
            [x, w] if b is None else [x, w, b],
            dilations=list(dilations),
            group=groups,
            pads=[*(begin for begin, _ in around), *(end for _, end in around)],
            strides=[1] * len(around),
        )

    def cut(self, x: ir.Value, crops: Crops) -> ir.Value:
        """x without some positions at the ends of its spatial axes."""
        chosen = [axis for axis, crop in enumerate(crops) if crop != (0, 0)]
        if not chosen:
            return x
        axes = [axis + 2 for axis in chosen]
        starts = [crops[axis][0] for axis in chosen]
        ends = [-crops[axis][1] or _TO_THE_END for axis in chosen]
        return self.op("Slice", [x, *map(self.integers, (starts, ends, axes))])

    def split(self, x: ir.Value, parts: int, axis: int) -> Sequence[ir.Value]:
        """x in equal parts along one axis."""
        count = parts if self._opset >= 18 else None
        return self._put("Split", [x], parts, None, {"axis": axis, "num_outputs": count})

    def pad(self, x: ir.Value, around: Crops) -> ir.Value:
        """x with zeros at the ends of all its axes, batch and channels included."""
        if not any(map(any, around)):
            return x
        pads = [*(begin for begin, _ in around), *(end for _, end in around)]
        return self.op("Pad", [x, self.integers(pads)])

    def shuffle(self, x: ir.Value, strides: Sequence[int], channels: int, order: Order) -> ir.Value:
        """Depth to space: (N, prod(s)*channels, *n) as (N, channels, *(n*s)), for any rank."""
        if max(strides) == 1:
            return x
        if len(strides) == 2 and strides[0] == strides[1]:
            return self.op("DepthToSpace", [x], blocksize=strides[0], mode=order.value)
        return self._shuffle_by_transposing(x, strides, channels, order)

    def _shuffle_by_transposing(
        self, x: ir.Value, strides: Sequence[int], channels: int, order: Order
    ) -> ir.Value:
        rank = len(strides)
        sizes = self._spatial(x, rank)
        leading = [channels, *strides] if order is Order.CHANNEL_MAJOR else [*strides, channels]
        apart = self.reshape(x, [0, *leading], sizes)
        c = 1 if order is Order.CHANNEL_MAJOR else rank + 1
        first = 2 if order is Order.CHANNEL_MAJOR else 1
        pairs = [axis for i in range(rank) for axis in (rank + 2 + i, first + i)]
        turned = self.op("Transpose", [apart], perm=[0, c, *pairs])
        return self.reshape(turned, [0, channels], self._times(sizes, strides))

    def reshape(
        self, x: ir.Value, leading: Sequence[int], sizes: Sequence[int] | ir.Value
    ) -> ir.Value:
        """x with the shape `leading` + `sizes`, which may be a computed vector."""
        if not isinstance(sizes, ir.Value):
            return self.op("Reshape", [x, self.integers([*leading, *sizes])])
        shape = self.op("Concat", [self.integers(leading), sizes], axis=0)
        return self.op("Reshape", [x, shape], x.dtype)

    def _spatial(self, x: ir.Value, rank: int) -> Sequence[int] | ir.Value:
        """x's spatial sizes, for a reshape: -1 where only one is open, computed where more are."""
        if rank == 1:
            return [-1]
        shape = self.op("Shape", [x], ir.DataType.INT64)
        return self.op("Slice", [shape, *map(self.integers, ([2], [_TO_THE_END], [0]))])

    def _times(
        self, sizes: Sequence[int] | ir.Value, strides: Sequence[int]
    ) -> Sequence[int] | ir.Value:
        if isinstance(sizes, ir.Value):
            return self.op("Mul", [sizes, self.integers(strides)])
        return sizes

    def squeeze(self, x: ir.Value, axes: Sequence[int], *, undo: bool = False) -> ir.Value:
        """x without some axes of length 1; with `undo`, with them put in."""
        return self.op("Unsqueeze" if undo else "Squeeze", [x, self.integers(axes)])

    def replace(self, old: ir.Value, new: ir.Value, dead: Sequence[ir.Node]) -> None:
        """Put `new` in the place of `old`, name and all, and take out nodes that are now unused.

        dead: of these the last in the graph first; the new nodes stand where that one stood.
        """
        old_name, old.name = old.name, None
        new.name, new.type, new.shape = old_name, old.type or new.type, old.shape
        new.metadata_props.update(old.metadata_props)
        self._nodes[-1].doc_string = self._node.doc_string
        for key, entry in self._node.metadata_props.items():
            self._nodes[-1].metadata_props.setdefault(key, entry)
        graph = cast(ir.Graph, self._node.graph)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.insert_before(dead[0], self._nodes)
        _remove(dead)

    def _fresh(self, hint: str) -> str:
        return self._unused(f"{self._node.name or self._node.outputs[0].name or 'node'}/{hint}")

    def _unused(self, base: str) -> str:
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name


def _names(model: ir.Model) -> set[str]:
    """Every name of a node or value in the model: one space, so that nothing can clash."""
    names = [value.name for value in values(model)]
    names += [node.name for body in roots(model) for node in body.all_nodes()]
    return {name for name in names if name}


def _remove(dead: Iterable[ir.Node]) -> None:
    """Take nodes out, last first, and all that was there for nobody else: nodes, initialisers."""
    waiting = list(dead)[::-1]
    while waiting:
        node = waiting.pop()
        if node.graph is None:
            continue  # it was there for two of the others, or stands in `dead` too
        read = [value for value in node.inputs if value is not None]
        node.graph.remove(node, safe=True)
        for value in dict.fromkeys(read):
            producer = value.producer()
            if value.is_initializer() and not _wanted(value):
                cast(ir.Graph, value.graph).initializers.pop(str(value.name), None)
            elif producer is not None and not any(map(_wanted, producer.outputs)):
                waiting.append(producer)


def _wanted(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_input() or value.is_graph_output()
