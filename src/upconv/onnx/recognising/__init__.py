"""The way back: which transposed convolution a model computes by other means.

    found                                                  equals a ConvTranspose with
    1. zeros between the inputs, then Conv                 the Conv's kernel, reversed
    2. nearest neighbours (Resize, Upsample), then Conv    that kernel, summed over the neighbours
    3. Conv, then depth to space                           s taps for one, one per phase

Zeros are put between by a depthwise ConvTranspose of one weight 1, by Pad and Reshape, or, where
sizes are known, by any nodes that move elements, as exporters write an assignment to a strided
slice; nearest neighbours likewise. Depth to space is DepthToSpace, or Reshape, Transpose and
Reshape. It is reported, never rewritten: what is faster is another question. What is not exactly
equal (a bias that differs among phases, a cut that the kernel would look behind, another mode of
Resize) is not reported.

What lives here: `recognise` and what it finds. Graphs are read in `raising`, `moving`, `shuffling`.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ..known import known
from ..models import Source, from_model, to_proto
from .found import Kind, Recognised
from .raising import raised_convolution
from .shuffling import shuffled_convolution

__all__ = ["Kind", "Recognised", "recognise"]

_PATTERNS: tuple[Callable[[ir.Node, int], Recognised | None], ...] = (
    raised_convolution,
    shuffled_convolution,
)


def recognise(model: Source) -> tuple[Recognised, ...]:
    """Every transposed convolution that a model computes without, or around, a ConvTranspose.

    model: a path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`; not changed.

    Raises `ModelError` and `FileError` for what cannot be read.

    >>> import onnx
    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[N,1,L] x) => (float[N,1,M] y)
    ...     <float[3] scales = {1, 1, 2}, float[1, 1, 3] w = {1, 2, 3}>
    ...     { r = Resize<mode = "nearest">(x, , scales) y = Conv<pads = [1, 1]>(r, w) }'''
    >>> [found] = recognise(onnx.parser.parse_model(text))
    >>> found.attributes["kernel_shape"], found.attributes["strides"], found.attributes["pads"]
    ((4,), (2,), (1, 1))
    >>> found.weight
    array([[[3., 5., 3., 1.]]], dtype=float32)
    >>> print(found)
    r..y is a ConvTranspose with weight (1, 1, 4), strides (2,), pads (1, 1), 1.5 times cheaper
    """
    whole = from_model(model)
    _tell_shapes(whole)
    bodies = [whole.graph, *(function.graph for function in whole.functions.values())]
    return tuple(
        found
        for body in bodies
        for node in body.all_nodes()
        for pattern in _PATTERNS
        if (found := pattern(node, _opset(node, whole))) is not None
    )


def _tell_shapes(model: ir.Model) -> None:
    """Let values have the shapes that inference finds, where the model says nothing of them."""
    told = known(to_proto(model), {})
    for node in model.graph:
        for value in node.outputs:
            shape = told.shape(str(value.name)) if value.name else None
            if shape is not None and value.shape is None:
                value.shape = ir.Shape(shape)
            kind = told.dtype(str(value.name)) if value.name else None
            if kind is not None and value.type is None:
                value.type = ir.TensorType(ir.DataType.from_numpy(kind))


def _opset(node: ir.Node, model: ir.Model) -> int:
    imports = {} if node.graph is None else node.graph.opset_imports
    return imports.get("", model.opset_imports.get("", 0))
